"""Streams as readable lines: ids numbered, times left out, deltas merged, whatever the source of the stream."""
