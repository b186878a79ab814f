"""Endpoints of files and uploads."""
