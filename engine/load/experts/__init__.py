"""Experts of mixture models that stay in the model's files, or as they are stored, until they are packed."""
