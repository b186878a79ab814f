"""The one thread that writes to the file: what has come while it wrote is written next, in one transaction.

So a commit is shared by all streams of the moment, and the event loop never waits for the medium. It also tells the
others, by a heartbeat, that this process lives, and ends the responses of those that live no more.
"""

import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog
from msgspec import Struct

from antiphon.app.event_log import EventLog, LogEntry, is_terminal
from antiphon.app.store.database import Database, LeaseLostError
from antiphon.app.store.log_items import conversation_items
from antiphon.state.recovery import failure_events

RESTARTED_CODE = "server_restarted"
RESTARTED_MESSAGE = "The server that was writing this response was stopped."
MAX_TRIES = 5
"""How often a transaction that fails is tried."""

_log = structlog.get_logger(__name__)


class StoreTimings(Struct, frozen=True, kw_only=True):
    """In seconds."""

    heartbeat_s: float = 1.0
    lease_s: float = 10.0
    """Who has not beaten for so long is gone: its responses are ended."""
    sweep_interval_s: float = 60.0
    """How often what is too old, or too much, is deleted."""
    retention_s: float = 30 * 86_400
    """How long a response is kept."""


class AppendEvents(Struct, frozen=True):
    """A step of a response; with its first one, the response itself."""

    log: EventLog
    entries: tuple[LogEntry, ...]
    is_first: bool = False
    is_repair: bool = False
    """Whether these are all frames that could not be written before."""


class DeleteResponse(Struct, frozen=True):
    """A response is to be forgotten."""

    response_id: str


WriteOp = AppendEvents | DeleteResponse


class WriteListener(Protocol):
    """Hears of what was written, in the writer's thread."""

    def on_written(self, safe: list[WriteOp], lost: list[WriteOp]) -> None:
        """Steps that are safe, and those of responses that are another process's, or nobody's, by now."""

    def on_write_failed(self, orders: list[WriteOp]) -> None:
        """These could not be written, however often it was tried."""

    def on_heartbeat(self, held: dict[str, bool]) -> None:
        """What this writer still writes, and of each response whether somebody elsewhere wants it to end."""

    def is_alive(self, name: str, beat: float) -> bool:
        """Whether a writer lives that beat last at that time."""
        ...


class StoreWriter:
    """`healthy` is false from a write that failed to the next one that does not."""

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
        """Responses of which a step could not be written."""
        self._heartbeat()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def enqueue(self, order: WriteOp) -> None:
        """Have something written."""
        self._queue.put(order)

    def close(self) -> None:
        """Write what is left, and leave."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        beaten = time.monotonic()
        while True:
            batch = self._take_batch(beaten + self._timings.heartbeat_s - time.monotonic())
            if batch and batch[-1] is None:
                self._write_batch([order for order in batch if order is not None])
                self._run_guarded(self._deregister)
                self._database.close()
                return
            self._write_batch([order for order in batch if order is not None])
            if time.monotonic() - beaten >= self._timings.heartbeat_s:
                beaten = time.monotonic()
                self._run_guarded(self._heartbeat)

    def _take_batch(self, seconds: float) -> list[WriteOp | None]:
        """What is to be written: the first order, and all that have come with it."""
        try:
            batch = [self._queue.get(timeout=max(seconds, 0.001))]
        except queue.Empty:
            return []
        while batch[-1] is not None and not self._queue.empty():
            batch.append(self._queue.get())
        return batch

    def _write_batch(self, batch: list[WriteOp]) -> None:
        """One transaction. What is lost to another process is told apart; when nothing can be written, all is."""
        if not batch:
            return
        batch = self._drop_after_gap(batch)
        for left in range(MAX_TRIES, 0, -1):
            try:
                lost = self._run_transaction(batch)
            except Exception as error:  # noqa: BLE001  # whatever it is: who waits for this thread would wait for ever
                self.healthy = False
                self._run_guarded(self._database.rollback)
                _log.error("store write failed", error=str(error), retries_left=left - 1)
                time.sleep(0.1)
            else:
                self.healthy = True
                self._listener.on_written([order for order in batch if order not in lost], lost)
                return
        self._incomplete |= {order.log.id for order in batch if isinstance(order, AppendEvents)}
        self._listener.on_write_failed(batch)

    def _drop_after_gap(self, batch: list[WriteOp]) -> list[WriteOp]:
        """Without steps of which an earlier one could not be written: what is in the file has no gaps."""
        late: list[WriteOp] = []
        for order in batch:
            if isinstance(order, AppendEvents) and order.is_repair:
                self._incomplete.discard(order.log.id)
            elif isinstance(order, AppendEvents) and order.log.id in self._incomplete:
                late.append(order)
        if late:
            self._listener.on_write_failed(late)
        return [order for order in batch if order not in late]

    def _run_transaction(self, batch: list[WriteOp]) -> list[WriteOp]:
        lost: list[WriteOp] = []
        self._database.begin(
            sync=any(isinstance(order, AppendEvents) and is_terminal(order.entries) for order in batch)
        )
        for order in batch:
            if isinstance(order, DeleteResponse):
                self._database.delete_response(order.response_id)
                continue
            if order.is_first:
                self._database.insert_response(order.log, self._name)
            try:
                self._database.append_events(order.log.owner, order.log.id, order.entries, self._name)
                if is_terminal(order.entries) and order.log.conversation_id:
                    self._database.add_items(order.log.owner, order.log.conversation_id, conversation_items(order.log))
            except LeaseLostError:
                lost.append(order)
        self._database.commit()
        return lost

    def _heartbeat(self) -> None:
        """Tell that this process lives; end what nobody writes any more; delete what is old."""
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
        """End a response whose writer is gone, unless another process was faster."""
        self._database.begin(sync=True)
        if self._database.take_over(response_id, writer, self._name):
            said = [frame.event for frame in self._database.load_entries(response_id)]
            missing = failure_events(said, code=RESTARTED_CODE, message=RESTARTED_MESSAGE)
            frames = [LogEntry.from_event(event) for event in missing]
            if frames:
                self._database.append_events(owner, response_id, frames, self._name)
        self._database.commit()

    def _deregister(self) -> None:
        self._database.begin(sync=True)
        self._database.delete_writer(self._name)
        self._database.commit()

    def _run_guarded(self, work: Callable[[], None]) -> None:
        """Do what may fail now and is done again later."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  # as above
            self._on_database_error(error)

    def _on_database_error(self, error: Exception) -> None:
        self.healthy = False
        _log.error("store write failed", error=str(error))
        with contextlib.suppress(sqlite3.Error):
            self._database.rollback()
