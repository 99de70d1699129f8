"""Recordings of a live engine: files that the simulator replays, kept in the data directory."""
