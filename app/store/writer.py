"""The writer thread of the store: steps that queued up during a transaction are committed together in the next one.

One commit serves all streams, and the event loop never waits for the disk. The thread also writes the heartbeat
of this process and ends the responses of processes whose heartbeat has stopped.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import structlog
from msgspec import Struct

from antiphon.app.event_log import EventLog, LogEntry, is_terminal
from antiphon.app.store.base import ChatMessages, StoredCompletion
from antiphon.app.store.database import Database, LeaseLostError, UnreadableRowError
from antiphon.app.store.log_items import conversation_items
from antiphon.state.recovery import failure_events

RESTARTED_CODE = "server_restarted"
RESTARTED_MESSAGE = "The server process stopped before this response was complete. Retry the request."
MAX_TRIES = 5
"""Attempts to commit a transaction, 0.1 s apart."""

_log = structlog.get_logger(__name__)


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
    """Changes the file in another way than by a step of a response. `done` gets the result once it is committed."""

    def __init__(self, apply: Callable[[Database], object], done: "asyncio.Future[Any]") -> None:
        self._apply, self.done = apply, done
        self.result: object = None

    def apply(self, database: Database) -> None:
        """Runs the statements in the current transaction, which may be repeated after a failure."""
        self.result = self._apply(database)


WriteOp = AppendEvents | StoreChange


class WriteListener(Protocol):
    """Receives the writer's results, in the writer's thread."""

    def on_written(self, committed: list[WriteOp], dropped: list[WriteOp]) -> None:
        """Receives committed operations, and steps dropped because the response was taken over or deleted elsewhere."""

    def on_write_failed(self, ops: list[WriteOp]) -> None:
        """Receives operations whose transaction failed in all attempts, and steps that follow such a failed step."""

    def on_heartbeat(self, cancel_requested: dict[str, bool]) -> None:
        """Receives the ids of this writer's unfinished responses, each with whether a cancellation was requested."""

    def is_alive(self, name: str, heartbeat_at: float) -> bool:
        """Tells whether the writer with this name and latest heartbeat (seconds since 1970) is alive."""
        ...


class StoreWriter:
    """Runs the writer thread. `healthy` is false from a failed write to the next successful one."""

    def __init__(
        self,
        path: Path,
        name: str,
        listener: WriteListener,
        times: StoreTimings,
        most: int,
    ) -> None:
        self._database, self._name, self._listener = Database(path), name, listener
        self.healthy = True
        self._timings, self._max_bytes = times, most
        self._queue: queue.SimpleQueue[WriteOp | None] = queue.SimpleQueue()
        self._last_sweep = 0.0
        self._incomplete: set[str] = set()
        """Ids of responses with a step that could not be written."""
        self._heartbeat()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def enqueue(self, op: WriteOp) -> None:
        """Queues an operation."""
        self._queue.put(op)

    def close(self) -> None:
        """Writes all queued operations, deletes the heartbeat and stops the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        last_heartbeat = time.monotonic()
        while True:
            batch = self._take_batch(last_heartbeat + self._timings.heartbeat_s - time.monotonic())
            if batch and batch[-1] is None:
                self._write_batch([op for op in batch if op is not None])
                self._run_guarded(self._deregister)
                self._database.close()
                return
            self._write_batch([op for op in batch if op is not None])
            if time.monotonic() - last_heartbeat >= self._timings.heartbeat_s:
                last_heartbeat = time.monotonic()
                self._run_guarded(self._heartbeat)

    def _take_batch(self, seconds: float) -> list[WriteOp | None]:
        """Waits up to `seconds` for an operation and returns it with all others in the queue, up to a final None."""
        try:
            batch = [self._queue.get(timeout=max(seconds, 0.001))]
        except queue.Empty:
            return []
        while batch[-1] is not None and not self._queue.empty():
            batch.append(self._queue.get())
        return batch

    def _write_batch(self, batch: list[WriteOp]) -> None:
        """Writes a batch in one transaction and reports the result. If all attempts fail, the whole batch fails."""
        if not batch:
            return
        batch = self._drop_after_gap(batch)
        for tries_left in range(MAX_TRIES, 0, -1):
            try:
                lost = self._run_transaction(batch)
            except Exception as error:  # noqa: BLE001  # if the thread ended, readers would wait forever
                self.healthy = False
                self._run_guarded(self._database.rollback)
                _log.error("store write failed", error=str(error), retries_left=tries_left - 1)
                time.sleep(0.1)
            else:
                self.healthy = True
                self._listener.on_written([op for op in batch if op not in lost], lost)
                return
        self._incomplete |= {op.log.id for op in batch if isinstance(op, AppendEvents)}
        self._listener.on_write_failed(batch)

    def _drop_after_gap(self, batch: list[WriteOp]) -> list[WriteOp]:
        """Drops the steps that follow a failed step of the same response, so that stored logs have no gaps."""
        dropped: list[WriteOp] = []
        for op in batch:
            if isinstance(op, AppendEvents) and op.is_repair:
                self._incomplete.discard(op.log.id)
            elif isinstance(op, AppendEvents) and op.log.id in self._incomplete:
                dropped.append(op)
        if dropped:
            self._listener.on_write_failed(dropped)
        return [op for op in batch if op not in dropped]

    def _run_transaction(self, batch: list[WriteOp]) -> list[WriteOp]:
        lost: list[WriteOp] = []
        self._database.begin(sync=any(isinstance(op, StoreChange) or is_terminal(op.entries) for op in batch))
        for op in batch:
            if isinstance(op, StoreChange):
                op.apply(self._database)
                continue
            if op.is_first:
                self._database.insert_response(op.log, self._name)
            if op.completion is not None:
                self._database.completions.insert_completion(op.log.owner, *op.completion)
            try:
                keep_details = op.log.keeps_details
                self._database.append_events(op.log.owner, op.log.id, op.entries, self._name, keep_details=keep_details)
                if is_terminal(op.entries) and op.log.conversation_id:
                    self._database.add_items(op.log.owner, op.log.conversation_id, conversation_items(op.log))
            except LeaseLostError:
                lost.append(op)
        self._database.commit()
        return lost

    def _heartbeat(self) -> None:
        """Writes the heartbeat, ends orphaned responses and, every `sweep_interval_s`, deletes expired ones."""
        self._database.begin(sync=False)
        self._database.save_heartbeat(self._name, time.time())
        self._database.commit()
        self.healthy = True
        self._listener.on_heartbeat(self._database.owned_responses(self._name))
        for owner, response_id, writer in self._database.list_orphaned(self._listener.is_alive):
            self._end_orphan(owner, response_id, writer)
        if time.monotonic() - self._last_sweep >= self._timings.sweep_interval_s or not self._last_sweep:
            self._last_sweep = time.monotonic()
            self._database.begin(sync=False)
            self._database.delete_expired(int(time.time() - self._timings.retention_s), self._max_bytes)
            self._database.commit()

    def _end_orphan(self, owner: str, response_id: str, writer: str) -> None:
        """Ends a response whose writer is dead as failed, unless another process has taken it over."""
        self._database.begin(sync=True)
        if self._database.take_over(response_id, writer, self._name):
            try:
                events = [entry.event for entry in self._database.load_entries(response_id)]
            except UnreadableRowError as error:
                _log.error("unreadable response deleted", response=response_id, error=str(error))
                self._database.delete_response(response_id)
                self._database.commit()
                return
            missing = failure_events(events, code=RESTARTED_CODE, message=RESTARTED_MESSAGE)
            entries = [LogEntry.from_event(event) for event in missing]
            if entries:
                self._database.append_events(owner, response_id, entries, self._name)
        self._database.commit()

    def _deregister(self) -> None:
        self._database.begin(sync=True)
        self._database.delete_writer(self._name)
        self._database.commit()

    def _run_guarded(self, work: Callable[[], None]) -> None:
        """Runs `work` and logs a failure: the work is repeated later."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  # as above
            self._on_database_error(error)

    def _on_database_error(self, error: Exception) -> None:
        self.healthy = False
        _log.error("store write failed", error=str(error))
        with contextlib.suppress(sqlite3.Error):
            self._database.rollback()
