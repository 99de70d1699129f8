"""Recorded benchmarks as the console shows them: sentences, tables and charts of their rows."""
