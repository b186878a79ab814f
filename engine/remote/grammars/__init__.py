"""Grammars for remote engines: in the syntax that each kind of server reads, and followed by our own matcher."""
