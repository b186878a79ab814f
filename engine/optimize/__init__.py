"""Optimizes a loaded model: selects its forward pass, and replaces layers by faster ones, each verified."""
