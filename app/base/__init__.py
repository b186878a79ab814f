"""Errors, settings, event logs, keys and small types, which every room of the application may import."""
