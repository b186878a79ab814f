"""Files and batches in the store."""
