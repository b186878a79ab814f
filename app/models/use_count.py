"""The uses of a model: how many there are now, since when there are none, and what all of them added up to."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from msgspec import structs

from antiphon.engine.protocol import EngineStats

TOTALS = (
    *("steps", "prompt_tokens", "prefix_hit_tokens", "generated_tokens", "finished_jobs", "failed_jobs"),
    *("encoded_images", "feature_cache_hits", "drafted_tokens", "accepted_tokens"),
    *("disk_hit_tokens", "disk_pages_written", "disk_pages_damaged"),
)
"""Fields of `EngineStats` that count since the start of an engine."""


class UseCounter:
    """Counts uses. After the last one, calls `on_leave` after `min_stay_s`, and `on_idle` after `idle_s` if given."""

    def __init__(
        self, min_stay_s: float, idle_s: float | None, on_leave: Callable[[], None], on_idle: Callable[[], None]
    ) -> None:
        self.count = 0
        self.has_left = False
        """True if there has been no use for `min_stay_s`."""
        self._min_stay_s, self._idle_s, self._on_leave, self._on_idle = min_stay_s, idle_s, on_leave, on_idle
        self._timers: list[asyncio.TimerHandle] = []

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Counts one more use during the block."""
        self.count += 1
        self.cancel_timers()
        try:
            yield
        finally:
            self.count -= 1
            self.start_timers()

    def start_timers(self) -> None:
        """Starts to wait for the next use, unless there is one."""
        if self.count:
            return
        self.cancel_timers()
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(self._min_stay_s, self._leave))
        if self._idle_s is not None:
            self._timers.append(loop.call_later(self._idle_s, self._on_idle))

    def cancel_timers(self) -> None:
        """Stops waiting for the next use."""
        self.has_left = False
        while self._timers:
            self._timers.pop().cancel()

    def _leave(self) -> None:
        self.has_left = True
        self._on_leave()


def add_totals(past: EngineStats, current: EngineStats) -> EngineStats:
    """Returns the current counts, with totals that include those of the past."""
    return structs.replace(current, **{name: getattr(past, name) + getattr(current, name) for name in TOTALS})
