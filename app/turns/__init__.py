"""Turns: rendering the prompt, running the generation, and writing the event log."""
