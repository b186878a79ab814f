"""Calls of built-in tools: readers of their arguments, behind the readers of all dialects."""
