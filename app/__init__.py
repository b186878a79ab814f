"""Letting the world in and out: requests, turns, logs, projections and the server. May import everything."""
