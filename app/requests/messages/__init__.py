"""Parser of Anthropic messages requests."""
