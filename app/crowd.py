"""Many requests at once: those that are too many hear of it at once, the others are looked at one after the other.

A request that would open a turn, and came whole in one piece, is counted from the moment it came. Where as many come as
there are places, the next one is refused from its bytes, before anything else is done about it. The others are read
one a turn of the event loop, so that what asks for less (`/health`, a stream's next piece) never waits for all of them.
Requests that come in pieces go the usual way and are counted when they have become turns, so that nobody keeps a place
by not finishing a request.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol

from msgspec import Struct

from app.asgi import Scope
from app.errors import ApiError

TURNS = ("/v1/responses", "/v1/responses/compact", "/v1/chat/completions")
"""What opens a turn when something is posted to it."""

_HEAD = re.compile(rb"POST (/v1/[a-z/]+) HTTP/1\.1\r\n((?:[!-9;-~]+:[ -~]*\r\n)+)\r\n")
_PATHS = frozenset(path.encode() for path in TURNS)
_ODD = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
"""Headers that make a request more than its head and so many bytes."""

Pairs = list[tuple[bytes, bytes]]


class Ticket:
    """One that was let in and is no turn yet."""

    def __init__(self, crowd: "Crowd") -> None:
        self._crowd: Crowd | None = crowd

    def decide(self) -> None:
        """It has become a turn, or has ended without; only the first time counts."""
        if self._crowd is not None:
            self._crowd.coming -= 1
            self._crowd = None


_held: ContextVar[Ticket | None] = ContextVar("ticket", default=None)


def hold(ticket: Ticket | None) -> None:
    """The request that this task serves came with this ticket."""
    _held.set(ticket)


def decided() -> None:
    """The request that this task serves has a place now."""
    if ticket := _held.get():
        ticket.decide()


class Guest(Protocol):
    """A connection, between two requests."""

    def let_in(self, data: bytes, ticket: Ticket | None) -> None:
        """Read what came."""
        ...

    def turn_away(self, error: ApiError, request_id: str) -> None:
        """Answer what came, and wait for the next request."""
        ...


class Whole(Struct):
    """A request that came in one piece, as far as it matters for turning it away."""

    path: bytes
    headers: Pairs

    @property
    def scope(self) -> Scope:
        """As a gate knows requests."""
        return {"type": "http", "method": "POST", "path": self.path.decode(), "headers": self.headers}


def whole(data: bytes) -> Whole | None:
    """The request that these bytes are, if it would open a turn and they are exactly one, with nothing odd about it."""
    match = _HEAD.match(data)
    if match is None or match[1] not in _PATHS:
        return None
    lines = (line.partition(b":") for line in match[2].split(b"\r\n")[:-1])
    headers = [(name.lower(), value.strip()) for name, _, value in lines]
    names = {name for name, _ in headers}
    lengths = [value for name, value in headers if name == b"content-length"]
    stays = all(value.lower() == b"keep-alive" for name, value in headers if name == b"connection")
    if len(lengths) != 1 or not stays or names & _ODD or lengths[0] != b"%d" % (len(data) - match.end()):
        return None
    return Whole(match[1], headers)


class Crowd:
    """`free` tells how many turns could be opened now; `refuse` gives the error and the id for one too many."""

    def __init__(self, free: Callable[[], int], refuse: Callable[[Scope], tuple[ApiError, str]]) -> None:
        self._free, self._refuse = free, refuse
        self._queue: deque[tuple[Guest, bytes, Ticket]] = deque()
        self._busy = False
        self.coming = 0
        """Requests that were let in and are no turns yet."""

    def come(self, guest: Guest, data: bytes) -> None:
        """What came on a connection that waits for a request."""
        try:
            request = whole(data)
            refusal = self._refuse(request.scope) if request and self._free() <= self.coming else None
        except Exception:  # noqa: BLE001  # a fault of ours is answered on the usual way
            request = refusal = None
        if request is None:
            guest.let_in(data, None)
        elif refusal is not None:
            guest.turn_away(*refusal)
        else:
            self.coming += 1
            self._queue.append((guest, data, Ticket(self)))
            if not self._busy:
                self._next()

    def _next(self) -> None:
        """One a turn of the loop; whoever comes alone does not wait."""
        self._busy = bool(self._queue)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._next)
            guest, data, ticket = self._queue.popleft()
            guest.let_in(data, ticket)
