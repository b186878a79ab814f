"""Incremental parsing of model output: the tape, the dialect reader, JSON."""
