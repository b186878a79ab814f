"""Replaces layers of a loaded model by faster ones with the same results."""
