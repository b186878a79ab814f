"""Prompts of turns: rendering, earlier tokens, truncation and what a compaction keeps."""
