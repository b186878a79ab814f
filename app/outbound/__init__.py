"""Connections to hosts that clients name: which may be reached, at which addresses, and what may come back."""
