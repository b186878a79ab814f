"""Traces in OpenTelemetry's form: the decision to sample, the spans of a turn, and their export."""
