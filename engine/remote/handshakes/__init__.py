"""Requests that a remote server answers before jobs are sent to it, and checks of its answers."""
