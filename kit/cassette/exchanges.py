"""Recorded exchanges, as values: what a cassette holds."""

from typing import Literal

import msgspec

from antiphon.kit.faults import WireFault

CassetteEnding = Literal["complete", "cut", "reset", "client_left"]
"""How a reply ended: as a whole, by the server's closing or resetting the connection, or by the client's leaving."""


class RecordedFrame(msgspec.Struct, frozen=True):
    """One frame of a stream of server-sent events, comments included, and when it came after the request."""

    at_ms: int
    data: bytes
    """The frame as it came, with the empty line at its end."""


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request. `path` has the query."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class RecordedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply with a body in one piece, or with frames."""

    status: int
    at_ms: int = 0
    """When its head came after the request."""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    frames: tuple[RecordedFrame, ...] | None = None
    ended: CassetteEnding = "complete"


class RecordedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request, its reply, and the fault that the player puts into the reply."""

    request: RecordedRequest
    response: RecordedReply
    name: str = ""
    """A remark of the person who edits the cassette."""
    fault: WireFault | None = None

    @property
    def title(self) -> str:
        """Method and path, for messages."""
        return f"{self.request.method} {self.request.path}"
