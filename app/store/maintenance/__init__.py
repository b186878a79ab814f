"""Commands on a store: copies, checks, sizes and deletions, also while a server uses it."""
