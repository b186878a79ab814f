"""Incremental parsing of model output: the tape, the base class of readers, JSON."""
