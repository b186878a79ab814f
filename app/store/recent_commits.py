"""Steps of transactions that the database has committed but may not have on disk yet.

If the database server crashes, it loses such transactions; the writer then writes their steps again.
"""

import time
from collections import deque

from antiphon.app.store.write_ops import WriteOp

MAX_DELAY_S = 10.0
"""Time after which every commit is on disk. PostgreSQL's default is three times 200 ms."""


class RecentCommits:
    """The steps of recent transactions that were committed without a sync, by the number of the transaction."""

    def __init__(self) -> None:
        self._commits: deque[tuple[float, int, list[WriteOp]]] = deque()

    def add(self, number: int, ops: list[WriteOp], *, is_synced: bool) -> None:
        """Adds a transaction. One that is synced puts all earlier ones on disk, too."""
        now = time.monotonic()
        if is_synced:
            self._commits.clear()
            return
        self._commits.append((now, number, ops))
        while now - self._commits[0][0] > MAX_DELAY_S:
            self._commits.popleft()

    def take_lost(self, last_number: int) -> list[WriteOp]:
        """Returns the steps of all transactions after the last one that the database has, and forgets them."""
        lost = [op for _, number, ops in self._commits if number > last_number for op in ops]
        self._commits = deque(commit for commit in self._commits if commit[1] <= last_number)
        return lost
