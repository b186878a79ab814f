"""Admission control: excess requests are rejected immediately, the others are parsed one at a time.

A generation request that arrives complete in one read is counted from its arrival. If all slots are taken, it is
rejected from its bytes, before any other work. Admitted requests are parsed one per event-loop iteration, so that
cheaper work (`/health`, the next chunk of a stream) never waits for all of them; for a short time they also yield to
rejections.
Requests that arrive in several reads are not queued here and are counted once they are turns, so that no client
occupies a slot by leaving a request unfinished.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache

from msgspec import Struct

from antiphon.app.errors import ApiError
from antiphon.app.http.asgi import AsgiScope, HeaderPairs
from antiphon.app.http.endpoints.table import Match

_HEAD_PATTERN = re.compile(rb"POST ([!-~]+) HTTP/1\.1\r\n((?:[!-9;-~]+:[ -~]*\r\n)+)\r\n")
_CONTENT_LENGTH = re.compile(rb"0|[1-9][0-9]{0,15}")
_EXCLUDED_HEADERS = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
"""Headers that make a request more than its head and `Content-Length` bytes."""

ADMITTED_DELAY_S = 0.05
"""Maximum seconds that admitted requests yield to rejections. Rejecting a request takes 1/20 of the time that parsing
takes, and admitted requests wait longer than this anyway."""
MAX_CACHED_HEADS = 64
"""Number of distinct request heads to cache. A client that sends many requests sends the same head with each."""
MAX_CACHED_HEAD_BYTES = 2048
"""Maximum size of a cached head in bytes."""


class AdmissionPermit:
    """Counts one request that was admitted and has not become a turn."""

    def __init__(self, controller: "AdmissionController") -> None:
        self._controller: AdmissionController | None = controller

    def release(self) -> None:
        """Stops counting the request: it has become a turn, or has ended. Only the first call has an effect."""
        if self._controller is not None:
            self._controller.num_admitted -= 1
            self._controller = None


Accept = Callable[[bytes, AdmissionPermit | None], None]
"""Parses the received bytes. The permit is None for a request that is not counted."""
Reject = Callable[[ApiError, HeaderPairs], None]
"""Answers the request with an error and additional headers, then waits for the next one."""


class RequestHead(Struct, frozen=True, eq=False):
    """Head of a generation request: the parts that are needed to reject it."""

    scope: AsgiScope
    """ASGI scope, with the fields that the request guard checks."""
    match: Match
    content_length: int
    """Size of the body in bytes."""


class HeadParser:
    """Reads generation requests from their bytes. `starting`: the endpoints that start turns, by their paths."""

    def __init__(self, starting: Mapping[str, Match]) -> None:
        self._starting = {path.encode(): match for path, match in starting.items()}
        self._parse_head_cached = lru_cache(MAX_CACHED_HEADS)(self._parse_head)

    def parse(self, data: bytes) -> RequestHead | None:
        """Returns the head if `data` is exactly one generation request without unusual headers, else None."""
        end = data.find(b"\r\n\r\n") + 4
        head = self._parse_head_cached(data[:end]) if end <= MAX_CACHED_HEAD_BYTES else self._parse_head(data[:end])
        return head if head is not None and head.content_length == len(data) - end else None

    def _parse_head(self, data: bytes) -> RequestHead | None:
        parts = _HEAD_PATTERN.fullmatch(data)
        match = self._starting.get(parts[1]) if parts is not None else None
        if parts is None or match is None:
            return None
        lines = (line.partition(b":") for line in parts[2].split(b"\r\n")[:-1])
        headers = [(name.lower(), value.strip()) for name, _, value in lines]
        names = {name for name, _ in headers}
        lengths = [value for name, value in headers if name == b"content-length"]
        keep_alive = all(value.lower() == b"keep-alive" for name, value in headers if name == b"connection")
        is_plain = keep_alive and not names & _EXCLUDED_HEADERS
        if len(lengths) != 1 or not _CONTENT_LENGTH.fullmatch(lengths[0]) or not is_plain:
            return None
        scope = {"type": "http", "method": "POST", "path": parts[1].decode(), "headers": headers}
        return RequestHead(scope, match, int(lengths[0]))


class AdmissionController:
    """Admits or rejects generation requests.

    `starting`: the endpoints that start turns, by their paths. `free_slots` returns the number of turns that could be
    opened now; `build_rejection` returns the error and additional headers for an excess request.
    """

    def __init__(
        self,
        starting: Mapping[str, Match],
        free_slots: Callable[[], int],
        build_rejection: Callable[[RequestHead], tuple[ApiError, HeaderPairs]],
    ) -> None:
        self._parse = HeadParser(starting).parse
        self._free_slots, self._build_rejection = free_slots, build_rejection
        self._queue: deque[tuple[Accept, bytes, AdmissionPermit]] = deque()
        self._is_draining = self._has_rejected = False
        self._delay_until = 0.0  # while requests are being rejected, admitted ones wait until this time
        self.num_admitted = 0
        """Number of admitted requests that have not become turns."""

    def submit(self, data: bytes, accept: Accept, reject: Reject) -> None:
        """Rejects or queues a complete generation request; passes other bytes to `accept` immediately."""
        try:
            request = self._parse(data)
            rejection = self._build_rejection(request) if request and self._free_slots() <= self.num_admitted else None
        except Exception:  # noqa: BLE001  # after a server bug, the normal path handles the request
            request = rejection = None
        if request is None:
            accept(data, None)
        elif rejection is not None:
            self._has_rejected = True
            reject(*rejection)
        else:
            self.num_admitted += 1
            self._queue.append((accept, data, AdmissionPermit(self)))
            if not self._is_draining:
                self._delay_until, self._has_rejected = asyncio.get_running_loop().time() + ADMITTED_DELAY_S, False
                self._accept_next()

    def _accept_next(self) -> None:
        """Accepts one queued request per event-loop iteration. A single request does not wait."""
        self._is_draining = bool(self._queue)
        if not self._is_draining:
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self._accept_next)
        if self._has_rejected and loop.time() < self._delay_until:
            self._has_rejected = False
            return
        accept, data, permit = self._queue.popleft()
        accept(data, permit)
