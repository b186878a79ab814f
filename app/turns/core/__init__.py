"""Turns the inputs of a turn into its events, without tasks, clocks or randomness."""
