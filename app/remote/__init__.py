"""Serving a model that runs on other servers: its options, and the creation of its engine."""
