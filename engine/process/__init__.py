"""The engine's worker process: spawning it, watching it, and exchanging messages with it."""
