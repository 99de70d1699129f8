"""Browser components of the console."""
