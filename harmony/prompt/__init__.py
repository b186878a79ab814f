"""Rendering of a conversation: chat template messages, tool descriptions, and the prompt text."""
