"""Tests of the service: protocol-level with a scripted engine, and against the real server."""
