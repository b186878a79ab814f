"""Parser of chat completion requests."""
