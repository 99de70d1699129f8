"""Trains drafters from a target's own answers: generate, extract, fit, evaluate."""
