"""Models that turn texts into vectors or scores: their repositories, their forward pass, batching. Run in a worker."""
