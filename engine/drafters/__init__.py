"""Drafters that need no model, and the protocol of all: one line each in the registry."""
