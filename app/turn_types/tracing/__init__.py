"""Traces of requests and turns: their ids, and what is noted while they run."""
