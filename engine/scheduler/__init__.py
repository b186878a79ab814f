"""Continuous batching: scheduling, sampling, grammars, drafts and the prefix cache."""
