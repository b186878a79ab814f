"""The jobs of a worker process, in its parent."""
