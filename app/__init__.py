"""The HTTP application: requests, turns, event logs, projections, stores and the server. May import every package."""
