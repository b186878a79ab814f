"""Endpoints: how one is declared, the table that finds them, and the form of the paths that it reads."""
