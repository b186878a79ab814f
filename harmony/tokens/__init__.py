"""Vocabularies, the detokenizer, the encoding cache, and the escaping of special tokens in client text."""
