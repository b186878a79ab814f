"""Uses fewer CPU threads while other processes compete for the cores.

Every operation ends when its slowest thread has finished. If one of the threads waits for a core, all others wait for
it, so that more threads than free cores can be slower than one thread. The kernel counts for how long threads were
ready to run and waited: the share of this time is measured, and the number of threads is reduced by it. All threads are
tried again later, at growing intervals as long as the cores are still in use.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

CPU_LOAD_INTERVAL_S = 0.25
"""Seconds between two measurements."""

MAX_WAITING_SHARE = 0.1
"""Share of the threads' runnable time that they may wait for a core. It is about 0.01 if nothing else runs."""

FIRST_RETRY_S = 2.0
"""Seconds with fewer threads before all are tried again, at first."""
MAX_RETRY_S = 60.0
"""The same at most."""

MIN_SUCCESS_S = 10.0
"""Seconds with all threads after which the next retry is the first again."""


class ThreadTimes(NamedTuple):
    """Nanoseconds for which the threads of this process have run, and have waited for a core."""

    running: int
    waiting: int


def read_thread_times(folder: Path = Path("/proc/self/task")) -> ThreadTimes | None:
    """Returns the sums over the threads that run now; None if the system does not count them."""
    times = [[int(word) for word in text.split()[:2]] for text in _read_all(folder)]
    if not times:
        return None
    return ThreadTimes(sum(running for running, _ in times), sum(waiting for _, waiting in times))


def _read_all(folder: Path) -> Iterator[str]:
    for path in folder.glob("*/schedstat"):
        try:
            yield path.read_text(encoding="ascii")
        except OSError:  # the thread has ended
            continue


class ThreadGovernor:
    """Chooses the number of threads, at most `threads`, between two steps of the engine."""

    def __init__(
        self,
        threads: int,
        set_threads: Callable[[int], None],
        *,
        read_times: Callable[[], ThreadTimes | None] = read_thread_times,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.current = self._all = threads
        self._set_threads, self._read_times, self._clock = set_threads, read_times, clock
        self._times = read_times()
        self._measured_at = self._changed_at = clock()
        self._retry_s = FIRST_RETRY_S

    def update(self) -> None:
        """Measures, if the interval has passed, and sets the number of threads if it changes."""
        now = self._clock()
        if self._all == 1 or self._times is None or now - self._measured_at < CPU_LOAD_INTERVAL_S:
            return
        previous, self._times = self._times, self._read_times()
        self._measured_at = now
        if self._times is None:
            return
        waiting = max(self._times.waiting - previous.waiting, 0)
        running = max(self._times.running - previous.running, 0)
        share = waiting / max(waiting + running, 1)
        if share > MAX_WAITING_SHARE and self.current > 1:
            self._reduce(share, now)
        elif self.current < self._all and now - self._changed_at >= self._retry_s:
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
            self._change(self._all, now)

    def _reduce(self, share: float, now: float) -> None:
        if self.current == self._all and now - self._changed_at >= MIN_SUCCESS_S:
            self._retry_s = FIRST_RETRY_S
        self._change(max(min(self.current - 1, int(self.current * (1 - share))), 1), now)

    def _change(self, threads: int, now: float) -> None:
        self.current, self._changed_at = threads, now
        self._set_threads(threads)
