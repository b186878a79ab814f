"""Many requests at once: those that are too many hear of it at once, the others are looked at one after the other.

A request that would open a turn, and came whole in one piece, is counted from the moment it came. Where as many come as
there are places, the next one is refused from its bytes, before anything else is done about it. The others are read
one a turn of the event loop, so that what asks for less (`/health`, a stream's next piece) never waits for all of them,
and, for a moment, after those that are refused.
Requests that come in pieces go the usual way and are counted when they have become turns, so that nobody keeps a place
by not finishing a request.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from typing import Protocol

from msgspec import Struct

from antiphon.app.errors import ApiError
from antiphon.app.http.asgi import Scope

TURNS = ("/v1/responses", "/v1/responses/compact", "/v1/chat/completions")
"""What opens a turn when something is posted to it."""

_HEAD = re.compile(rb"POST (/v1/[a-z/]+) HTTP/1\.1\r\n((?:[!-9;-~]+:[ -~]*\r\n)+)\r\n")
_PATHS = frozenset(path.encode() for path in TURNS)
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,15}")
_ODD = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
"""Headers that make a request more than its head and so many bytes."""

BRIEF = 0.05
"""Seconds for which those who were let in wait behind those who are refused: to read a request takes twenty times as
long as to refuse one, and what was let in has more to wait for than that."""
KNOWN = 64
"""So many different heads are known by sight. Whoever sends many requests sends them with the same one."""
LONGEST = 2048
"""Bytes of a head up to which it is."""


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


class Head(Struct, frozen=True, eq=False):
    """The head of a request that would open a turn, as far as it matters for turning it away."""

    scope: Scope
    """As a gate knows requests."""
    length: int
    """Bytes of the body."""


def whole(data: bytes) -> Head | None:
    """The head of what came, if that would open a turn and is exactly one request, with nothing odd about it."""
    end = data.find(b"\r\n\r\n") + 4
    head = _known(data[:end]) if end <= LONGEST else _read(data[:end])
    return head if head is not None and head.length == len(data) - end else None


def _read(data: bytes) -> Head | None:
    match = _HEAD.fullmatch(data)
    if match is None or match[1] not in _PATHS:
        return None
    lines = (line.partition(b":") for line in match[2].split(b"\r\n")[:-1])
    headers = [(name.lower(), value.strip()) for name, _, value in lines]
    names = {name for name, _ in headers}
    lengths = [value for name, value in headers if name == b"content-length"]
    stays = all(value.lower() == b"keep-alive" for name, value in headers if name == b"connection")
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]) or not stays or names & _ODD:
        return None
    scope = {"type": "http", "method": "POST", "path": match[1].decode(), "headers": headers}
    return Head(scope, int(lengths[0]))


_known = lru_cache(KNOWN)(_read)


class Crowd:
    """`free` tells how many turns could be opened now; `refuse` gives the error and the id for one too many."""

    def __init__(self, free: Callable[[], int], refuse: Callable[[Head], tuple[ApiError, str]]) -> None:
        self._free, self._refuse = free, refuse
        self._queue: deque[tuple[Guest, bytes, Ticket]] = deque()
        self._busy = self._refused = False
        self._until = 0.0  # while some are refused, the others wait until then
        self.coming = 0
        """Requests that were let in and are no turns yet."""

    def come(self, guest: Guest, data: bytes) -> None:
        """What came on a connection that waits for a request."""
        try:
            request = whole(data)
            refusal = self._refuse(request) if request and self._free() <= self.coming else None
        except Exception:  # noqa: BLE001  # a fault of ours is answered on the usual way
            request = refusal = None
        if request is None:
            guest.let_in(data, None)
        elif refusal is not None:
            self._refused = True
            guest.turn_away(*refusal)
        else:
            self.coming += 1
            self._queue.append((guest, data, Ticket(self)))
            if not self._busy:
                self._until, self._refused = asyncio.get_running_loop().time() + BRIEF, False
                self._next()

    def _next(self) -> None:
        """One a turn of the loop; whoever comes alone does not wait."""
        self._busy = bool(self._queue)
        if not self._busy:
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self._next)
        if self._refused and loop.time() < self._until:
            self._refused = False
            return
        guest, data, ticket = self._queue.popleft()
        guest.let_in(data, ticket)
