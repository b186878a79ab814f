"""Lines of JSON: files of results, logs, pages of events."""

from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()
_LINE_SEPARATORS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def encode_json_line(value: Any) -> bytes:
    """Encodes a value as a line of JSON, with the line feed that ends it."""
    return escape_line_separators(_encoder.encode(value)) + b"\n"


def escape_line_separators(data: bytes) -> bytes:
    """Escapes the characters in JSON that some readers take for the end of a line.

    Files of JSON lines and server-sent events end lines with CR and LF only, but some readers split at every Unicode
    line end (Python's `splitlines`, and with it `iter_lines` of httpx), so a model's U+2028 would split a line in two.
    """
    if not data.isascii() and (b"\xe2\x80" in data or b"\xc2\x85" in data):
        for raw, escaped in _LINE_SEPARATORS:
            data = data.replace(raw, escaped)
    return data
