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


def frame(event: Event, data: bytes) -> bytes:
    """One frame. `data` is the event's JSON, in which no raw line feed can occur."""
    return b"%b%b\n\n" % (_heads[type(event)], data)


def data_frame(data: bytes) -> bytes:
    """A frame without an event name, as chat completions send them."""
    return b"data: %b\n\n" % data


class _Heads(dict[type[Event], bytes]):
    """What stands before the JSON of an event of this class. Made once for each."""

    def __missing__(self, event: type[Event]) -> bytes:
        head = self[event] = f"event: {event.__struct_config__.tag}\ndata: ".encode()
        return head


_heads = _Heads()
