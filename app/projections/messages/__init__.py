"""Projection of event logs to Anthropic messages."""
