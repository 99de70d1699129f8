"""Suffix decoding: drafts what followed most often in counted trees of past texts."""
