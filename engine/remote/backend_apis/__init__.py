"""The HTTP interfaces of remote engines: how each encodes a job and reports its output."""
