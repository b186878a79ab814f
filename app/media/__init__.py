"""Pictures and files of requests: read in the sandbox, prepared for the model once, kept for the engine."""
