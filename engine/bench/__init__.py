"""Measures drafters through the engine itself: `python -m engine.bench`, one process a run."""
