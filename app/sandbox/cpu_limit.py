"""Runs work in a thread and abandons it when it has used too much CPU time.

The limit applies to the thread's own CPU time, not to elapsed time: a request is not at fault when its work waits for
a CPU on a busy machine, or for a free thread.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class _CpuClock(Generic[T]):
    """Runs work and measures its CPU time; on macOS, which has no clock for it, the time since the work began."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._clock: int | None = None
        self._begun = 0.0

    def __call__(self) -> T:
        get_clock_id = getattr(time, "pthread_getcpuclockid", None)
        clock_id = get_clock_id(threading.get_ident()) if get_clock_id else time.CLOCK_MONOTONIC
        self._begun, self._clock = time.clock_gettime(clock_id), clock_id
        return self._work()

    @property
    def cpu_seconds(self) -> float:
        """CPU time in seconds; 0 while the work waits for a thread."""
        return 0.0 if self._clock is None else time.clock_gettime(self._clock) - self._begun


async def run_with_cpu_limit(seconds: float, work: Callable[[], T], executor: Executor | None = None) -> T:
    """Runs `work` in a thread and returns its result. Raises `TimeoutError` once it has used `seconds` of CPU time.

    `executor` has the thread; None: that of the event loop. A thread cannot be stopped: after the timeout the work
    continues, and its result is discarded.
    """
    clock = _CpuClock(work)
    call = partial(copy_context().run, clock)
    running = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(executor, call))
    try:
        while not (await asyncio.wait({running}, timeout=max(seconds - clock.cpu_seconds, seconds / 10)))[0]:
            if clock.cpu_seconds >= seconds:
                raise TimeoutError
        return running.result()
    finally:
        running.cancel()
