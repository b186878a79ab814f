"""Parser of text completions."""
