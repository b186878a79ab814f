"""Decides which line runs next: owners take turns, and so do the batches of one owner. It knows no clock and no I/O."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from antiphon.app.store.batches.records import BatchLine

OwnedRun = TypeVar("OwnedRun")


class LineQueue(Generic[OwnedRun]):
    """The lines of one batch that wait, in the order in which they run."""

    def __init__(self, owner: str, run: OwnedRun) -> None:
        self.owner, self.run = owner, run
        self.lines: deque[BatchLine] = deque()
        self.num_running = 0
        self.last_start = 0


class LineScheduler(Generic[OwnedRun]):
    """Queues of all batches that run. Example: owner A has 50 000 lines and B has 10; with two places, each has one."""

    def __init__(self) -> None:
        self._queues: list[LineQueue[OwnedRun]] = []
        self._running: Counter[str] = Counter()
        self._last_start: dict[str, int] = {}
        self._num_started = 0

    def add_queue(self, queue: LineQueue[OwnedRun]) -> None:
        """Adds the queue of a batch."""
        self._queues.append(queue)

    def remove_queue(self, queue: LineQueue[OwnedRun]) -> None:
        """Removes the queue of a batch, none of whose lines run any more."""
        self._queues.remove(queue)
        if all(other.owner != queue.owner for other in self._queues):
            self._last_start.pop(queue.owner, None)

    def start_next(
        self, may_start: Callable[[LineQueue[OwnedRun]], bool]
    ) -> tuple[LineQueue[OwnedRun], BatchLine] | None:
        """Takes the next line off its queue and counts it; None if no line waits, or none may start.

        `may_start` tells whether the first line of a queue may.
        """
        ready = [queue for queue in self._queues if queue.lines and may_start(queue)]
        if not ready:
            return None
        queue = min(ready, key=self._rank_queue)
        self._num_started += 1
        queue.last_start = self._last_start[queue.owner] = self._num_started
        queue.num_running += 1
        self._running[queue.owner] += 1
        return queue, queue.lines.popleft()

    def end_line(self, queue: LineQueue[OwnedRun]) -> None:
        """Stops counting a line that has ended."""
        queue.num_running -= 1
        self._running[queue.owner] -= 1

    def _rank_queue(self, queue: LineQueue[OwnedRun]) -> tuple[int, int, int, int]:
        """Returns the key of the order: the owner with the fewest lines, then the one whose last start is oldest."""
        owner = queue.owner
        return self._running[owner], self._last_start.get(owner, 0), queue.num_running, queue.last_start
