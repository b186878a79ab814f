"""The prefix cache on disk: whole pages of keys and values, written when a job ends and read after a restart."""
