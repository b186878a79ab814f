"""Framing of server-sent events.

A frame is one `event:` line that repeats the type, one `data:` line and one blank line. It ends lines with LF only and
is written in one piece: some readers drop frames with CRLF or frames that arrive in two pieces.
"""

import msgspec

from antiphon.events.base import Event

DONE_FRAME = b"data: [DONE]\n\n"
PING_COMMENT = b": ping\n\n"

_encoder = msgspec.json.Encoder()
_LINE_SEPARATORS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def encode_event(event: Event) -> bytes:
    """Encodes the event as JSON without framing, as WebSockets send it and stores keep it."""
    return escape_line_separators(_encoder.encode(event))


def escape_line_separators(data: bytes) -> bytes:
    """Escapes the characters in JSON that some clients take for the end of a line.

    Server-sent events end lines with CR and LF only, but some clients split at every Unicode line end (Python's
    `splitlines`, and with it `iter_lines` of httpx), so a model's U+2028 would split a frame in two.
    """
    if not data.isascii() and (b"\xe2\x80" in data or b"\xc2\x85" in data):
        for raw, escaped in _LINE_SEPARATORS:
            data = data.replace(raw, escaped)
    return data


def frame_event(event: Event, data: bytes) -> bytes:
    """Frames an event. `data` is the event's JSON, in which no raw line feed can occur."""
    return b"%b%b\n\n" % (_event_headers[type(event)], data)


def frame_data(data: bytes) -> bytes:
    """Frames data without an event name, as Chat Completions does."""
    return b"data: %b\n\n" % escape_line_separators(data)


class _EventHeaders(dict[type[Event], bytes]):
    """The bytes of a frame before the JSON, by event class. Built once per class."""

    def __missing__(self, event: type[Event]) -> bytes:
        header = self[event] = f"event: {event.__struct_config__.tag}\ndata: ".encode()
        return header


_event_headers = _EventHeaders()
