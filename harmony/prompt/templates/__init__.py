"""Renders chat templates, within limits, and finds out how a template shows messages."""
