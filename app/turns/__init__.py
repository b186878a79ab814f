"""Turns: rendering a request, running its generation, and writing its event log."""
