"""Tests: they mirror the packages; e2e/ drives the console in a browser."""
