"""Schema revisions, one linear chain."""
