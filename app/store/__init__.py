"""Stored responses and conversations: in memory, or in a database that several servers may share."""
