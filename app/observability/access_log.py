"""The log of requests: a line for each, and one write for all that ended within a moment.

In a flood there are thousands. Written one by one, each would hold up whoever waits for an answer, the more so where a
terminal is slow to take it; what a line looks like is settled beforehand for the same reason.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache

import msgspec
from msgspec import Struct
from rich.console import Console

FLUSH_INTERVAL_S = 0.05
"""Seconds that a line may wait for others."""


class AccessRecord(Struct, frozen=True):
    """One line of the log: one request. `seconds` runs to the last byte of the answer."""

    method: str
    path: str
    status: int
    seconds: float
    request_id: str


LineFormat = Callable[[AccessRecord, float], str]
"""A request and when it ended, in seconds since 1970, as one line without its end."""


class AccessLog:
    """`tell` is called from the event loop; `flush` at the end, too. `write` gets whole lines."""

    def __init__(self, shape: LineFormat, write: Callable[[str], object]) -> None:
        self._shape, self._write = shape, write
        self._told: list[tuple[AccessRecord, float]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add_record(self, line: AccessRecord) -> None:
        """A request is over."""
        self._told.append((line, time.time()))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self.flush_lines)

    def flush_lines(self) -> None:
        """Write what was told."""
        if self._timer is not None:
            self._timer.cancel()
        told, self._told, self._timer = self._told, [], None
        if told:
            self._write("".join(f"{self._shape(line, at)}\n" for line, at in told))


def console_format(screen: Console) -> LineFormat:
    """What it was, how it went, how long it took; in colours where the screen has them."""

    @cache
    def marked(text: str, style: str) -> str:
        with screen.capture() as captured:
            screen.print(text, style=style, end="", markup=False, highlight=False)
        return captured.get()

    before, _, behind = marked("@", "dim").partition("@")

    def shape(line: AccessRecord, _: float) -> str:
        colour = "green" if line.status < 400 else "yellow" if line.status < 500 else "red"
        took = f"{line.seconds * 1000:.0f} ms"
        return f"{marked(str(line.status), colour)} {line.method} {line.path} {took} {before}{line.request_id}{behind}"

    return shape


def json_format(line: AccessRecord, at: float) -> str:
    """A JSON object in the shape of all other lines (see `app.observability.log_config`)."""
    said = {
        "method": line.method,
        "path": line.path,
        "status": line.status,
        "seconds": round(line.seconds, 6),
        "request_id": line.request_id,
        "event": "request",
        "level": "info",
        "timestamp": datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }
    return msgspec.json.encode(said).decode()
