"""Access log, log configuration, metrics, and the messages printed at start-up."""
