"""Operations of a store's writer thread, those that it may have to repeat, and its intervals."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from antiphon.app.errors import storage_unavailable
from antiphon.app.requests.chat.stored import ChatMessages
from antiphon.app.store.base import StoredCompletion
from antiphon.app.store.database import Database
from antiphon.app.turn_types.event_log import EventLog, LogEntry

NOT_WRITABLE = "The response store is not writable."
NOTHING_CHANGED = f"{NOT_WRITABLE} Nothing was changed. Retry later."
MAYBE_CHANGED = f"{NOT_WRITABLE} The database did not say whether the change was made. Look it up, then retry."
MAX_CHANGE_WAIT_S = 10.0
"""Time after which a change is reported as failed if the database has not confirmed it."""


class StoreTimings(Struct, frozen=True, kw_only=True):
    """Intervals of the writer and the store's retention, in seconds."""

    heartbeat_s: float = 1.0
    """Time between two signs of life of a writer."""
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
        self._lock = threading.Lock()
        self._is_committing = False
        self.is_given_up = False
        """True if the change must not be made any more."""

    def apply(self, database: Database) -> None:
        """Runs the statements in the current transaction, which may be repeated after a failure."""
        self.result = self._apply(database)

    def begin_commit(self) -> bool:
        """Returns False if the change was given up; else it cannot be given up from now on."""
        with self._lock:
            self._is_committing = not self.is_given_up
            return self._is_committing

    def end_commit(self) -> None:
        """Makes it possible to give the change up again: the transaction was rolled back."""
        with self._lock:
            self._is_committing = False

    def give_up(self) -> bool:
        """Prevents the change. Returns False if it is too late, because the transaction is being committed."""
        with self._lock:
            self.is_given_up = not self._is_committing
            return self.is_given_up

    async def wait_done(self) -> Any:
        """Waits until the change is durable and returns its result. Raises `ApiError` 503 after `MAX_CHANGE_WAIT_S`.

        The change is then given up, or continues if that is not possible. It also continues if the caller is cancelled.
        """
        await asyncio.wait({self.done}, timeout=MAX_CHANGE_WAIT_S)
        if not self.done.done():
            if not self.give_up():
                raise storage_unavailable(MAYBE_CHANGED)
            self.fail()
        return self.done.result()

    def fail(self) -> None:
        """Reports that nothing was changed. Call it on the event loop."""
        if not self.done.done():
            self.done.set_exception(storage_unavailable(NOTHING_CHANGED))
            self.done.exception()  # marks it as retrieved: the client may have left

    def succeed(self) -> None:
        """Reports that the change is durable. Call it on the event loop."""
        if not self.done.done():
            self.done.set_result(self.result)


WriteOp = AppendEvents | StoreChange
OpQueue = queue.SimpleQueue[WriteOp | None]
"""Operations for the writer; None ends it."""
