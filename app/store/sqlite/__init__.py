"""The store in one SQLite file, which several processes of one machine may share."""
