"""Projection of event logs to text completions."""
