"""The stream that all output of the server goes to: a bounded queue, written to standard error by a thread.

A pipe may have no reader, a terminal may be stopped, and a disk may be full. None of these may block the event loop or
end the process, so a line that finds the queue full, or cannot be written, is dropped and counted.
"""

import contextlib
import io
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

MAX_QUEUED_CHARS = 1 << 20
"""Characters that wait to be written, some ten thousand lines."""
LOG_CLOSE_TIMEOUT_S = 1.0
"""Seconds that the exit waits for queued lines, if the reader is slow."""
STANDARD_ERROR = 2


def describe_dropped(count: int) -> str:
    """Returns the line that reports dropped lines on a terminal."""
    return f"WARNING antiphon.log: {count} log lines were dropped: they could not be written in time\n"


class LogSink(io.TextIOBase, TextIO):
    """A text stream over a file descriptor whose `write` never blocks and never raises.

    `describe` returns the line that reports dropped lines, with its line feed. It is written after the lines that
    filled the queue.
    """

    def __init__(self, descriptor: int = STANDARD_ERROR, describe: Callable[[int], str] = describe_dropped) -> None:
        super().__init__()
        self._descriptor, self._describe = descriptor, describe
        self._queue: deque[str] = deque()
        self._num_queued_chars = 0
        self.num_dropped = 0
        """Lines dropped since the start."""
        self._num_unreported = 0
        self._is_closing = self._is_writing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str, /) -> int:
        """Queues text. Drops it if the queue is full."""
        with self._changed:
            if self._is_closing or self._num_queued_chars + len(text) > MAX_QUEUED_CHARS:
                self._count_dropped(text)
            else:
                self._queue.append(text)
                self._num_queued_chars += len(text)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Does nothing: the thread writes as soon as it can."""

    def writable(self) -> bool:
        """True, as for every stream that is written to."""
        return True

    def isatty(self) -> bool:
        """Tells whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Returns the descriptor, from which the size of a terminal is read."""
        return self._descriptor

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute of the base class
        """Encoding of the output."""
        return "utf-8"

    def close(self) -> None:
        """Waits a short time for queued text. Text written later is dropped."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._queue and not self._is_writing, LOG_CLOSE_TIMEOUT_S)
        super().close()

    def _count_dropped(self, text: str) -> None:
        count = max(text.count("\n"), 1)
        self.num_dropped += count
        self._num_unreported += count

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if not self._queue:
                    return
                self._is_writing = True
                text, self._num_queued_chars = "".join(self._queue), 0
                self._queue.clear()
                if self._num_unreported:
                    text += self._describe(self._num_unreported)
                    self._num_unreported = 0
            if not self._write_all(text.encode("utf-8", "replace")):
                with self._changed:
                    self._count_dropped(text)

    def _write_all(self, data: bytes) -> bool:
        """Writes bytes, however long the reader takes. Returns False if the descriptor cannot be written to."""
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another program has made the terminal non-blocking
                with contextlib.suppress(OSError, ValueError):
                    select.select([], [self._descriptor], [])
            except OSError:
                return False
        return True


def open_missing_descriptors() -> None:
    """Opens /dev/null for each standard stream that is closed, so that no socket or file gets its descriptor."""
    for descriptor in range(STANDARD_ERROR + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
