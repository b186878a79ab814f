"""Stored responses and conversations: in memory, or in a sqlite file that several servers may share."""
