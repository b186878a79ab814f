"""Writes event logs to a connection: an encoder turns new log entries into bytes, which are written as one chunk.

Every token of every client passes through here, so an engine step costs a stream one event-loop callback, and neither a
task nor a future.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from antiphon.app.errors import ApiError
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.events import sse

PING_INTERVAL_S = 15.0
"""Seconds without output after which a ping, an SSE comment, is sent: proxies close silent streams."""


class StreamEncoder:
    """Encodes the entries of logs as framed bytes of one API, as they are published."""

    logs: Sequence[EventLog]
    start = 0
    """Index of the first entry to read from each log."""
    failure: ApiError | None = None
    """Failure that ends the stream, even if the logs continue: only `final` remains to be written."""

    def initial(self) -> bytes:
        """Returns the bytes before the first entry."""
        return b""

    def encode(self, number: int, entries: list[LogEntry]) -> bytes:
        """Returns the bytes for the next entries of `logs[number]`."""
        raise NotImplementedError

    def final(self) -> bytes:
        """Returns the bytes after the last entry."""
        return b""


class ChunkSink(Protocol):
    """Destination of chunks. Nothing may be written while `write_paused` is true; `drain` waits until it is false."""

    @property
    def write_paused(self) -> bool: ...  # noqa: D102

    def write_chunk(self, chunk: bytes) -> None: ...  # noqa: D102

    async def drain(self) -> None: ...  # noqa: D102


async def pump(encoder: StreamEncoder, sink: ChunkSink) -> None:
    """Writes a stream from its first to its last byte, as fast as its logs grow and the sink accepts it."""
    with contextlib.ExitStack() as stack:
        await _StreamPump(encoder, sink, stack).done
    await sink.drain()


class _StreamPump:
    """Writes one stream. `done` completes when all is written or an error occurs. Only a paused sink needs a task."""

    def __init__(self, encoder: StreamEncoder, sink: ChunkSink, stack: contextlib.ExitStack) -> None:
        self._encoder, self._sink = encoder, sink
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._draining: asyncio.Task[None] | None = None
        self._wrote_at = self._loop.time()
        self._ping_timer = self._loop.call_later(PING_INTERVAL_S, self._send_ping)
        stack.callback(self._stop)
        self._readers = [
            stack.enter_context(log.open_reader(encoder.start, self._write_available)) for log in encoder.logs
        ]
        self._write_chunk(encoder.initial())
        self._write_available()

    def _write_available(self) -> None:
        """Writes new entries: the logs have grown, or the sink accepts data again."""
        if self.done.done() or self._draining is not None:
            return
        try:
            self._write_entries()
        except Exception as error:  # noqa: BLE001  # raised again where the stream is awaited
            self.done.set_exception(error)

    def _write_entries(self) -> None:
        encoder = self._encoder
        for number, reader in enumerate(self._readers):
            # Also checked after the last chunk: if that has filled the sink, a task must drain it.
            while not self._is_paused() and encoder.failure is None and (entries := reader.take_entries()):
                self._write_chunk(encoder.encode(number, entries))
        if encoder.failure is None:
            for reader in self._readers:
                if not reader.at_end:
                    return
        if not self._is_paused():
            self._write_chunk(encoder.final())
            self.done.set_result(None)

    def _write_chunk(self, piece: bytes) -> None:
        if piece:
            self._sink.write_chunk(piece)
        # Entries that this API does not show postpone the ping, too.
        self._wrote_at = self._loop.time()

    def _is_paused(self) -> bool:
        """Tells whether the sink is paused; if it is, starts a task that waits for it."""
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
        remaining_s = self._wrote_at + PING_INTERVAL_S - self._loop.time()
        if remaining_s <= 0 and self._draining is None and not self.done.done():
            self._write_chunk(sse.PING_COMMENT)
            self._write_available()  # the sink may be paused now
        self._ping_timer = self._loop.call_later(remaining_s if remaining_s > 0 else PING_INTERVAL_S, self._send_ping)

    def _stop(self) -> None:
        self._ping_timer.cancel()
        if self._draining is not None:
            self._draining.cancel()
