"""Work in a thread that is given up when it has used too much of a processor.

What counts is the thread's own CPU time: work that waits for its turn, on a busy machine or behind others, is not at
fault for that, and whoever asked for it has done nothing wrong.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class _CpuClock(Generic[T]):
    """Work, and how much CPU time it has used by now. macOS does not say; there it is the time since it began."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._clock: int | None = None
        self._begun = 0.0

    def __call__(self) -> T:
        tell = getattr(time, "pthread_getcpuclockid", None)
        clock = tell(threading.get_ident()) if tell else time.CLOCK_MONOTONIC
        self._begun, self._clock = time.clock_gettime(clock), clock
        return self._work()

    @property
    def cpu_seconds(self) -> float:
        """Seconds; 0 while it waits for a thread."""
        return 0.0 if self._clock is None else time.clock_gettime(self._clock) - self._begun


async def run_with_cpu_limit(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises, done in a thread. Raises `TimeoutError` once it has used so much CPU time.

    A thread cannot be stopped: the work goes on, and nobody hears of its end.
    """
    metered = _CpuClock(work)
    running = asyncio.ensure_future(asyncio.to_thread(metered))
    try:
        while not (await asyncio.wait({running}, timeout=max(seconds - metered.cpu_seconds, seconds / 10)))[0]:
            if metered.cpu_seconds >= seconds:
                raise TimeoutError
        return running.result()
    finally:
        running.cancel()
