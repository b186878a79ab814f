"""Operations of a store's writer thread, those that it may have to repeat, and its intervals."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from antiphon.app.event_log import EventLog, LogEntry
from antiphon.app.store.base import ChatMessages, StoredCompletion
from antiphon.app.store.database import Database

MAX_SYNC_DELAY_S = 10.0
"""Time after which every commit is on disk. PostgreSQL's default is three times 200 ms."""


class StoreTimings(Struct, frozen=True, kw_only=True):
    """Intervals of the writer and the store's retention, in seconds."""

    heartbeat_s: float = 1.0
    lease_s: float = 7.0
    """A writer without a heartbeat for this long is considered dead, and its responses are ended. A client sees the end
    at most two heartbeats and one poll of the database later: within ten seconds."""
    sweep_interval_s: float = 60.0
    """Time between two deletions of expired and excess responses."""
    retention_s: float = 30 * 86_400
    """Age at which a finished response is deleted."""


class AppendEvents(Struct, frozen=True):
    """Writes one step of a response and, with `is_first`, the response itself."""

    log: EventLog
    entries: tuple[LogEntry, ...]
    is_first: bool = False
    is_repair: bool = False
    """True if `entries` are all entries of a finished log that could not be written before."""
    completion: tuple[StoredCompletion, ChatMessages] | None = None
    """A new chat completion, to be written with the log of its first choice."""


class StoreChange:
    """Changes the database in another way than by a step of a response. `done` gets the result once it is committed."""

    def __init__(self, apply: Callable[[Database], object], done: "asyncio.Future[Any]") -> None:
        self._apply, self.done = apply, done
        self.result: object = None

    def apply(self, database: Database) -> None:
        """Runs the statements in the current transaction, which may be repeated after a failure."""
        self.result = self._apply(database)


WriteOp = AppendEvents | StoreChange


class RecentCommits:
    """The steps of recent transactions that were committed without a sync, by the number of the transaction.

    If the database server crashes, it loses such transactions; the writer then writes their steps again.
    """

    def __init__(self) -> None:
        self._commits: deque[tuple[float, int, list[WriteOp]]] = deque()

    def add(self, number: int, ops: list[WriteOp], *, is_synced: bool) -> None:
        """Adds a transaction. One that is synced puts all earlier ones on disk, too."""
        now = time.monotonic()
        if is_synced:
            self._commits.clear()
            return
        self._commits.append((now, number, ops))
        while now - self._commits[0][0] > MAX_SYNC_DELAY_S:
            self._commits.popleft()

    def take_lost(self, last_number: int) -> list[WriteOp]:
        """Returns the steps of all transactions after the last one that the database has, and forgets them."""
        lost = [op for _, number, ops in self._commits if number > last_number for op in ops]
        self._commits = deque(commit for commit in self._commits if commit[1] <= last_number)
        return lost
