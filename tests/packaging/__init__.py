"""Tests of settings, command line, embedded model, lock file, compose file and layout page."""
