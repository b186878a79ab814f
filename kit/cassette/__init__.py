"""Cassettes: recorded exchanges as text that a person can read and edit, their recorder and their player."""
