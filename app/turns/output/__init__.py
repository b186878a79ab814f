"""Turns the output of the engine into events of the turn."""
