"""Experts of mixture models: recognized in transformers' classes, and computed from packed weights."""
