"""Returns the memory of large requests, and of large results of tools, to the system once they have ended.

A request's objects refer to each other, so Python frees them only at its next collection, which may be thousands of
small requests later. And glibc keeps freed memory for later allocations. After a large request, both are done at once.
"""

import asyncio
import gc

from antiphon.engine.host.malloc_tuning import return_freed_memory

LARGE_BODY_BYTES = 1 << 20
"""Size of a body after which memory is released. Smaller requests are most of them, and cost little."""
RELEASE_DELAY_S = 0.5
"""Seconds after the end of a large request, by when its stream and the store no longer need it."""


class MemoryReleaser:
    """Schedules at most one release at a time. Use it on the event loop."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def on_request_end(self, body_bytes: int) -> None:
        """Schedules a release if the request was large."""
        if body_bytes >= LARGE_BODY_BYTES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RELEASE_DELAY_S, self._release)

    def _release(self) -> None:
        self._timer = None
        gc.collect()  # a few milliseconds: the objects of the start are frozen
        asyncio.get_running_loop().run_in_executor(None, return_freed_memory)
