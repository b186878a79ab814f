"""Parser of Responses requests, and of what conversations store."""
