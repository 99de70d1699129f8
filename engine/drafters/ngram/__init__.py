"""The n-gram drafter: drafts what followed the latest occurrence of the end of the text."""
