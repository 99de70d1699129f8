"""The speculative engine: one process per device that drafts, verifies and commits."""
