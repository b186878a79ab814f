"""From logs to a connection: what new frames become is asked of a face of the wire, and written as one piece.

Every token of every client goes through here, so a step of the engine costs a stream one call from the event loop, and
neither a task nor a future.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from antiphon.app.event_log import EventLog, LogEntry
from antiphon.events import sse

PING_INTERVAL_S = 15.0
"""Seconds of silence after which a comment goes out: proxies close streams that say nothing."""


class StreamEncoder(Protocol):
    """What a face of the wire makes of logs: bytes, framed already. It is called with frames as they come."""

    logs: Sequence[EventLog]
    start: int
    """The first frame to read of each."""

    def initial(self) -> bytes:
        """What is said before the first frame."""
        ...

    def encode(self, number: int, frames: list[LogEntry]) -> bytes:
        """What the next frames of the log with this number become."""
        ...

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be said but `end`, though the logs go on."""
        ...

    def final(self) -> bytes:
        """What is said behind the last frame."""
        ...


class ChunkSink(Protocol):
    """Where pieces go. Nothing may be written while it is `stuck`; `drained` waits until it is no more."""

    @property
    def write_paused(self) -> bool: ...  # noqa: D102

    def write_chunk(self, piece: bytes) -> None: ...  # noqa: D102

    async def drain(self) -> None: ...  # noqa: D102


async def pump(encoder: StreamEncoder, sink: ChunkSink) -> None:
    """Write a telling, from its head to its end, as fast as its logs grow and no faster than the pipe takes it."""
    with contextlib.ExitStack() as stack:
        await _StreamPump(encoder, sink, stack).done
    await sink.drain()


class _StreamPump:
    """`over` is done when everything was written, or something broke. Only a pipe that is stuck takes a task."""

    def __init__(self, telling: StreamEncoder, pipe: ChunkSink, stack: contextlib.ExitStack) -> None:
        self._encoder, self._sink = telling, pipe
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._draining: asyncio.Task[None] | None = None
        self._wrote_at = self._loop.time()
        self._ping_timer = self._loop.call_later(PING_INTERVAL_S, self._send_ping)
        stack.callback(self._stop)
        self._readers = [
            stack.enter_context(log.open_reader(telling.start, self._write_available)) for log in telling.logs
        ]
        self._write_chunk(telling.initial())
        self._write_available()

    def _write_available(self) -> None:
        """There is more to read, or room to write."""
        if self.done.done() or self._draining is not None:
            return
        try:
            self._write_entries()
        except Exception as error:  # noqa: BLE001  # raised again where the stream is awaited
            self.done.set_exception(error)

    def _write_entries(self) -> None:
        telling = self._encoder
        for number, reading in enumerate(self._readers):
            # Asked behind the last piece, too: a pipe that it has filled empties in a task.
            while not self._is_paused() and reading.has_entries and not telling.finished:
                self._write_chunk(telling.encode(number, reading.take_entries()))
        if not telling.finished:
            for reading in self._readers:
                if not reading.at_end:
                    return
        if not self._is_paused():
            self._write_chunk(telling.final())
            self.done.set_result(None)

    def _write_chunk(self, piece: bytes) -> None:
        if piece:
            self._sink.write_chunk(piece)
        # Events for which a face has no word are no silence.
        self._wrote_at = self._loop.time()

    def _is_paused(self) -> bool:
        """Whether the pipe is stuck: then a task waits for it."""
        if self._draining is None and self._sink.write_paused:
            self._draining = asyncio.create_task(self._sink.drain())
            self._draining.add_done_callback(self._on_drained)
        return self._draining is not None

    def _on_drained(self, task: asyncio.Task[None]) -> None:
        self._draining = None
        if self.done.done() or task.cancelled():
            return
        if error := task.exception():
            self.done.set_exception(error)
        else:
            self._write_available()

    def _send_ping(self) -> None:
        left = self._wrote_at + PING_INTERVAL_S - self._loop.time()
        if left <= 0 and self._draining is None and not self.done.done():
            self._write_chunk(sse.PING_COMMENT)
            self._write_available()  # the pipe may be stuck now
        self._ping_timer = self._loop.call_later(left if left > 0 else PING_INTERVAL_S, self._send_ping)

    def _stop(self) -> None:
        self._ping_timer.cancel()
        if self._draining is not None:
            self._draining.cancel()
