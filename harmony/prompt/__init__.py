"""From a conversation to chat template messages and to prompt text."""
