"""Finds the dialect of a model from its template, its tokenizer and its files."""
