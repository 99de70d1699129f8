"""Runs the controller and other policies on a simulated engine: no model, no device, seeded."""
