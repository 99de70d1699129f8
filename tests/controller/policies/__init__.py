"""Tests of the policies beside the adaptive controller."""
