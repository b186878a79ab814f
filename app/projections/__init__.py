"""Projections of the event log, one module per wire format. They return only what the log contains."""
