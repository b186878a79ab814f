"""Experts of mixture models: discovered in transformers' classes, and computed from packed weights."""
