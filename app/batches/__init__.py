"""Files in the store, and batches: their lines run below all other requests."""
