"""Keeps packed weights on disk, so that a second start maps them instead of packing again."""
