"""Speculative decoding: where the draft tokens of a step come from, and how many there are."""
