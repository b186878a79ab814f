"""Server-sent-event framing.

LF only, one `event:` line that repeats the type, one `data:` line, one blank line, and all of it in one piece:
some readers drop frames with CRLF or frames that arrive in two pieces.
"""

import msgspec

from antiphon.events.base import Event

DONE_FRAME = b"data: [DONE]\n\n"
PING_COMMENT = b": ping\n\n"

_encoder = msgspec.json.Encoder()
_LINE_SEPARATORS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def encode_event(event: Event) -> bytes:
    """The event as JSON, without framing: what a WebSocket sends and a store keeps."""
    return escape_line_separators(_encoder.encode(event))


def escape_line_separators(data: bytes) -> bytes:
    """JSON in which nothing is left that any reader takes for the end of a line.

    Server-sent events end theirs with CR and LF only, but some clients cut at whatever Unicode calls a line (Python's
    `splitlines`, and with it `iter_lines` of httpx), so a model's U+2028 would tear a frame in two.
    """
    if not data.isascii() and (b"\xe2\x80" in data or b"\xc2\x85" in data):
        for raw, escaped in _LINE_SEPARATORS:
            data = data.replace(raw, escaped)
    return data


def frame_event(event: Event, data: bytes) -> bytes:
    """One frame. `data` is the event's JSON, in which no raw line feed can occur."""
    return b"%b%b\n\n" % (_event_headers[type(event)], data)


def frame_data(data: bytes) -> bytes:
    """A frame without an event name, as chat completions send them."""
    return b"data: %b\n\n" % escape_line_separators(data)


class _EventHeaders(dict[type[Event], bytes]):
    """What stands before the JSON of an event of this class. Made once for each."""

    def __missing__(self, event: type[Event]) -> bytes:
        head = self[event] = f"event: {event.__struct_config__.tag}\ndata: ".encode()
        return head


_event_headers = _EventHeaders()
