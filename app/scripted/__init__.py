"""Additions of `serve` to the scripted engine: faults that a script asks for, and recordings of token streams."""
