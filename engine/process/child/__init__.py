"""The worker process itself: its loop, and its ends of the connections to the parent."""
