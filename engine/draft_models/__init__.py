"""Drafters that are models of their own: draft models and multi-token prediction heads."""
