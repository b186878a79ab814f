"""In what order: the state machine that turns segments into events. Imports `events` and nothing else."""
