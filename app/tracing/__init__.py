"""Traces in OpenTelemetry's form: names of spans and attributes, sampling, the spans of a turn, their export."""
