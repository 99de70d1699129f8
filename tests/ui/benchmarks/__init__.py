"""Tests of ui/benchmarks/."""
