"""Vocabulary, detokenizer, encoding cache, and special tokens in user text."""
