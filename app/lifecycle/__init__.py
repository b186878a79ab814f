"""Starts, restarts and ends of the server's process: listening sockets, signals, the service manager."""
