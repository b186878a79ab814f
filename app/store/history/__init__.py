"""Earlier turns and items, read in threads: by response, by conversation, by the id of an item."""
