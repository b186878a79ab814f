"""Framing of server-sent events.

A frame is one `event:` line that repeats the type, one `data:` line and one blank line. It ends lines with LF only and
is written in one piece: some readers drop frames with CRLF or frames that arrive in two pieces.
"""

import msgspec

from antiphon.events.base import Event
from antiphon.events.json_lines import escape_line_separators

DONE_FRAME = b"data: [DONE]\n\n"
PING_COMMENT = b": ping\n\n"

_encoder = msgspec.json.Encoder()


def encode_event(event: Event) -> bytes:
    """Encodes the event as JSON without framing, as WebSockets send it and stores keep it."""
    return escape_line_separators(_encoder.encode(event))


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
