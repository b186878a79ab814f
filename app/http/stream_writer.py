"""From logs to a connection: what new frames become is asked of a face of the wire, and written as one piece.

Every token of every client goes through here, so a step of the engine costs a stream one call from the event loop, and
neither a task nor a future.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from antiphon.app.event_log import Frame, Log
from antiphon.events import sse

PING_AFTER = 15.0
"""Seconds of silence after which a comment goes out: proxies close streams that say nothing."""


class Telling(Protocol):
    """What a face of the wire makes of logs: bytes, framed already. It is called with frames as they come."""

    logs: Sequence[Log]
    start: int
    """The first frame to read of each."""

    def head(self) -> bytes:
        """What is said before the first frame."""
        ...

    def told(self, number: int, frames: list[Frame]) -> bytes:
        """What the next frames of the log with this number become."""
        ...

    @property
    def over(self) -> bool:
        """Whether nothing more is to be said but `end`, though the logs go on."""
        ...

    def end(self) -> bytes:
        """What is said behind the last frame."""
        ...


class Pipe(Protocol):
    """Where pieces go. Nothing may be written while it is `stuck`; `drained` waits until it is no more."""

    @property
    def stuck(self) -> bool: ...  # noqa: D102

    def write(self, piece: bytes) -> None: ...  # noqa: D102

    async def drained(self) -> None: ...  # noqa: D102


async def pump(telling: Telling, pipe: Pipe) -> None:
    """Write a telling, from its head to its end, as fast as its logs grow and no faster than the pipe takes it."""
    with contextlib.ExitStack() as stack:
        await _Pump(telling, pipe, stack).over
    await pipe.drained()


class _Pump:
    """`over` is done when everything was written, or something broke. Only a pipe that is stuck takes a task."""

    def __init__(self, telling: Telling, pipe: Pipe, stack: contextlib.ExitStack) -> None:
        self._telling, self._pipe = telling, pipe
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._draining: asyncio.Task[None] | None = None
        self._wrote_at = self._loop.time()
        self._watch = self._loop.call_later(PING_AFTER, self._ping)
        stack.callback(self._leave)
        self._readings = [stack.enter_context(log.read(telling.start, self._look)) for log in telling.logs]
        self._write(telling.head())
        self._look()

    def _look(self) -> None:
        """There is more to read, or room to write."""
        if self.over.done() or self._draining is not None:
            return
        try:
            self._tell()
        except Exception as error:  # noqa: BLE001  # raised again where the stream is awaited
            self.over.set_exception(error)

    def _tell(self) -> None:
        telling = self._telling
        for number, reading in enumerate(self._readings):
            # Asked behind the last piece, too: a pipe that it has filled empties in a task.
            while not self._waits() and reading.more and not telling.over:
                self._write(telling.told(number, reading.take()))
        if not telling.over:
            for reading in self._readings:
                if not reading.done:
                    return
        if not self._waits():
            self._write(telling.end())
            self.over.set_result(None)

    def _write(self, piece: bytes) -> None:
        if piece:
            self._pipe.write(piece)
        # Events for which a face has no word are no silence.
        self._wrote_at = self._loop.time()

    def _waits(self) -> bool:
        """Whether the pipe is stuck: then a task waits for it."""
        if self._draining is None and self._pipe.stuck:
            self._draining = asyncio.create_task(self._pipe.drained())
            self._draining.add_done_callback(self._drained)
        return self._draining is not None

    def _drained(self, task: asyncio.Task[None]) -> None:
        self._draining = None
        if self.over.done() or task.cancelled():
            return
        if error := task.exception():
            self.over.set_exception(error)
        else:
            self._look()

    def _ping(self) -> None:
        left = self._wrote_at + PING_AFTER - self._loop.time()
        if left <= 0 and self._draining is None and not self.over.done():
            self._write(sse.PING_COMMENT)
            self._look()  # the pipe may be stuck now
        self._watch = self._loop.call_later(left if left > 0 else PING_AFTER, self._ping)

    def _leave(self) -> None:
        self._watch.cancel()
        if self._draining is not None:
            self._draining.cancel()
