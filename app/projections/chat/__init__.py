"""Projection of event logs to chat completions."""
