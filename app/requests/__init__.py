"""Parsers of request bodies: strict decoding, OpenAI's error codes, and a defined handling for every field."""
