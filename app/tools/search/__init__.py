"""Searches: in folders of the operator, and the sources of web searches."""
