"""Stored responses and conversations: in memory, or in a SQLite file that several servers may share."""
