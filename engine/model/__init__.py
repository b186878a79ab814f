"""Loading a transformers model and running one forward pass over a batch."""
