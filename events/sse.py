"""Server-sent-event framing.

LF only, one `event:` line that repeats the type, one `data:` line, one blank line, and all of it in one piece:
some readers drop frames with CRLF or frames that arrive in two pieces.
"""

import msgspec

from events.base import Event

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

_encoder = msgspec.json.Encoder()


def encode(event: Event) -> bytes:
    """The event as JSON, without framing: what a WebSocket sends and a store keeps."""
    return _encoder.encode(event)


def frame(event_type: str, data: bytes) -> bytes:
    """One frame. `data` is JSON, in which no raw line feed can occur."""
    return b"event: %b\ndata: %b\n\n" % (event_type.encode(), data)


def data_frame(data: bytes) -> bytes:
    """A frame without an event name, as chat completions send them."""
    return b"data: %b\n\n" % data


def type_of(event: Event) -> str:
    """The wire name of an event's type."""
    return str(type(event).__struct_config__.tag)
