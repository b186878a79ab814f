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
from functools import lru_cache
from typing import Protocol

from msgspec import Struct

from antiphon.app.errors import ApiError
from antiphon.app.http.asgi import AsgiScope

GENERATION_PATHS = ("/v1/responses", "/v1/responses/compact", "/v1/chat/completions")
"""What opens a turn when something is posted to it."""

_HEAD_PATTERN = re.compile(rb"POST (/v1/[a-z/]+) HTTP/1\.1\r\n((?:[!-9;-~]+:[ -~]*\r\n)+)\r\n")
_PATHS = frozenset(path.encode() for path in GENERATION_PATHS)
_CONTENT_LENGTH = re.compile(rb"0|[1-9][0-9]{0,15}")
_EXCLUDED_HEADERS = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
"""Headers that make a request more than its head and so many bytes."""

ADMITTED_DELAY_S = 0.05
"""Seconds for which those who were let in wait behind those who are refused: to read a request takes twenty times as
long as to refuse one, and what was let in has more to wait for than that."""
MAX_CACHED_HEADS = 64
"""So many different heads are known by sight. Whoever sends many requests sends them with the same one."""
MAX_CACHED_HEAD_BYTES = 2048
"""Bytes of a head up to which it is."""


class AdmissionPermit:
    """One that was let in and is no turn yet."""

    def __init__(self, crowd: "AdmissionController") -> None:
        self._crowd: AdmissionController | None = crowd

    def release(self) -> None:
        """It has become a turn, or has ended without; only the first time counts."""
        if self._crowd is not None:
            self._crowd.num_admitted -= 1
            self._crowd = None


class AdmissionClient(Protocol):
    """A connection, between two requests."""

    def accept(self, data: bytes, permit: AdmissionPermit | None) -> None:
        """Read what came."""
        ...

    def reject(self, error: ApiError, request_id: str) -> None:
        """Answer what came, and wait for the next request."""
        ...


class RequestHead(Struct, frozen=True, eq=False):
    """The head of a request that would open a turn, as far as it matters for turning it away."""

    scope: AsgiScope
    """As a gate knows requests."""
    content_length: int
    """Bytes of the body."""


def parse_whole_request(data: bytes) -> RequestHead | None:
    """The head of what came, if that would open a turn and is exactly one request, with nothing odd about it."""
    end = data.find(b"\r\n\r\n") + 4
    head = _parse_head_cached(data[:end]) if end <= MAX_CACHED_HEAD_BYTES else _parse_head(data[:end])
    return head if head is not None and head.content_length == len(data) - end else None


def _parse_head(data: bytes) -> RequestHead | None:
    match = _HEAD_PATTERN.fullmatch(data)
    if match is None or match[1] not in _PATHS:
        return None
    lines = (line.partition(b":") for line in match[2].split(b"\r\n")[:-1])
    headers = [(name.lower(), value.strip()) for name, _, value in lines]
    names = {name for name, _ in headers}
    lengths = [value for name, value in headers if name == b"content-length"]
    stays = all(value.lower() == b"keep-alive" for name, value in headers if name == b"connection")
    if len(lengths) != 1 or not _CONTENT_LENGTH.fullmatch(lengths[0]) or not stays or names & _EXCLUDED_HEADERS:
        return None
    scope = {"type": "http", "method": "POST", "path": match[1].decode(), "headers": headers}
    return RequestHead(scope, int(lengths[0]))


_parse_head_cached = lru_cache(MAX_CACHED_HEADS)(_parse_head)


class AdmissionController:
    """`free` tells how many turns could be opened now; `refuse` gives the error and the id for one too many."""

    def __init__(self, free_slots: Callable[[], int], rejection: Callable[[RequestHead], tuple[ApiError, str]]) -> None:
        self._free_slots, self._rejection = free_slots, rejection
        self._queue: deque[tuple[AdmissionClient, bytes, AdmissionPermit]] = deque()
        self._draining_queue = self._refused = False
        self._delay_until = 0.0  # while some are refused, the others wait until then
        self.num_admitted = 0
        """Requests that were let in and are no turns yet."""

    def submit(self, client: AdmissionClient, data: bytes) -> None:
        """What came on a connection that waits for a request."""
        try:
            request = parse_whole_request(data)
            refusal = self._rejection(request) if request and self._free_slots() <= self.num_admitted else None
        except Exception:  # noqa: BLE001  # a fault of ours is answered on the usual way
            request = refusal = None
        if request is None:
            client.accept(data, None)
        elif refusal is not None:
            self._refused = True
            client.reject(*refusal)
        else:
            self.num_admitted += 1
            self._queue.append((client, data, AdmissionPermit(self)))
            if not self._draining_queue:
                self._delay_until, self._refused = asyncio.get_running_loop().time() + ADMITTED_DELAY_S, False
                self._accept_next()

    def _accept_next(self) -> None:
        """One a turn of the loop; whoever comes alone does not wait."""
        self._draining_queue = bool(self._queue)
        if not self._draining_queue:
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self._accept_next)
        if self._refused and loop.time() < self._delay_until:
            self._refused = False
            return
        guest, data, ticket = self._queue.popleft()
        guest.accept(data, ticket)
