"""The agents of the sample."""
