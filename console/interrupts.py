"""Ctrl-C in a conversation: it stops a reply, and ends a prompt, and is never lost in between.

An exception that a signal raises at any place would skip the rest of a handler, and a signal that comes just before a
blocking read of a socket would wait for its end. So replies are read on an event loop, which a signal wakes, and
outside of prompts a signal is only noted.
"""

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Self, TypeVar

Result = TypeVar("Result")


class StoppedError(Exception):
    """Raised if Ctrl-C stopped what was running."""


def run_until_interrupt(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine and returns its result. SIGINT cancels it. Raises `StoppedError` then."""
    previous = signal.getsignal(signal.SIGINT)
    try:
        return asyncio.run(_run_cancellable(work))
    finally:
        signal.signal(signal.SIGINT, previous)  # the loop has set the default


async def _run_cancellable(work: Coroutine[Any, Any, Result]) -> Result:
    task, is_stopped = asyncio.ensure_future(work), False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if is_stopped:
            raise StoppedError from None
        raise


class PromptReader:
    """Reads lines from the terminal. While the block runs, Ctrl-C raises `KeyboardInterrupt` from `read_line` only."""

    def __init__(self) -> None:
        self._is_reading = self._is_pending = False

    def __enter__(self) -> Self:
        self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def read_line(self, prompt: str) -> str:
        """Returns a line. Raises `KeyboardInterrupt`, also for a Ctrl-C since the last line, and `EOFError`."""
        self._is_reading = True
        try:
            if self._is_pending:
                self._is_pending = False
                raise KeyboardInterrupt
            return input(prompt)
        finally:
            self._is_reading = False

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        if self._is_reading:
            raise KeyboardInterrupt
        self._is_pending = True
