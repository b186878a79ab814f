"""Limits of API keys, and the sums of what they use."""
