"""Prometheus metrics, split by their source."""
