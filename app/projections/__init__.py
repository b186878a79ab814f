"""Readings of the event log, one module per face of the wire. None of them says anything the log does not."""
