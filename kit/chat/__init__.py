"""Chat Completions: a checker of their streams, and a comparison with the same turn through the Responses API."""
