"""Endpoints, one module per group. A route parses a request, starts turns, and sends a projection of their logs."""
