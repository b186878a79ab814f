"""The engine's worker process: its spawning, its supervision, and the messages exchanged with it."""
