"""Stages of a loaded model before its core is created."""
