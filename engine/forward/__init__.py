"""Forward passes of a model: one row of tokens for all sequences, or each sequence alone."""
