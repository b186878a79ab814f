"""API keys: their sources, the file of keys with owners and limits, and its reload while the server runs."""
