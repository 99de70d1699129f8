"""Tests of the console in a real browser, against the live server under load."""
