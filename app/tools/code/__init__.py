"""Code of models, run in workers of pydantic-monty."""
