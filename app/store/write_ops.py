"""What the writer thread of a store writes, and its intervals."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from antiphon.app.event_log import EventLog, LogEntry
from antiphon.app.store.base import ChatMessages, StoredCompletion
from antiphon.app.store.database import Database


class StoreTimings(Struct, frozen=True, kw_only=True):
    """Intervals of the writer and the store's retention, in seconds."""

    heartbeat_s: float = 1.0
    lease_s: float = 10.0
    """A writer without a heartbeat for this long is considered dead, and its responses are ended."""
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
