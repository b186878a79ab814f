"""Connections to remote servers: addresses, HTTP, server-sent events."""
