"""Endpoints that convert texts without generating any: to tokens, vectors or scores."""
