"""The writer thread of the store: steps that queued up during a transaction are committed together in the next one.

One commit serves all streams, and the event loop never waits for it. The thread also writes the heartbeat of this
process and claims the responses of processes whose heartbeat has stopped.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from antiphon.app.store.database import Database
from antiphon.app.store.history.step_rows import NewStep
from antiphon.app.store.log_items import conversation_items
from antiphon.app.store.writing import writer_lease
from antiphon.app.store.writing.outage import MAX_RECONNECT_DELAY_S, Outage
from antiphon.app.store.writing.tracked_logs import TrackedLogs
from antiphon.app.store.writing.upkeep import StoreUpkeep
from antiphon.app.store.writing.write_ops import (
    AppendEvents,
    OpQueue,
    StoreChange,
    StoreTimings,
    WriteOp,
)
from antiphon.app.turn_types.event_log import begins_tool_run, is_terminal

MAX_TRIES = 5
"""Attempts to commit a transaction, 0.1 s apart."""
MAX_STUCK_S = 15.0
"""Time of one statement after which a server that exits no longer waits for a database that does not answer."""

_log = structlog.get_logger(__name__)


class StoreWriter:
    """Runs the writer thread. `healthy` is false from a failed write to the next successful one."""

    def __init__(
        self,
        database: Database,
        name: str,
        op_queue: OpQueue,
        logs: TrackedLogs,
        timings: StoreTimings,
        max_bytes: int,
    ) -> None:
        self._database, self._name, self._queue, self._logs = database, name, op_queue, logs
        self.healthy = True
        self._timings, self._max_bytes = timings, max_bytes
        self._last_sweep = 0.0
        self.watch = writer_lease.HeartbeatWatch(name, timings.lease_s)
        self._upkeep = StoreUpkeep(database, name, self.watch.is_alive, logs.on_orphan_claimed)
        self.report_commit: Callable[[float], None] = lambda _: None
        """Receives the duration of each transaction with operations, in seconds. The thread calls it."""
        self.owner_bytes: Callable[[], Mapping[str, int]] = dict
        """Returns the limits of some owners. The thread calls it."""
        self.num_bytes = 0
        """Size of the database at the latest sweep."""
        self.runs_batches = False
        """True if this process takes over the batches of servers that are dead."""
        self.busy_since: float | None = None
        """Time at which the thread ended its last wait for operations; None while it waits."""
        self._is_closing = False
        self._lost_ops: list[WriteOp] = []
        """Steps of the latest transaction that were not written, because this process does not own their responses."""
        self._incomplete: set[str] = set()
        """Ids of responses with a step that could not be written."""
        self._heartbeat()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def continue_turns(self, digests: Mapping[str, str], continue_within_s: float) -> None:
        """Sets which responses of dead processes this one continues: see `ResponseStore.continue_turns`."""
        self._upkeep.continue_within_s = continue_within_s
        self._upkeep.digests = digests

    def busy_s(self) -> float:
        """Returns the seconds for which the thread has been writing without a pause; 0 while it waits."""
        busy_since = self.busy_since
        return 0.0 if busy_since is None else time.monotonic() - busy_since

    def close(self) -> None:
        """Writes all queued operations, deletes the heartbeat and stops the thread."""
        self._is_closing = True
        self._queue.put(None)
        while self._thread.is_alive():
            self._thread.join(1.0)
            if self.busy_s() > MAX_STUCK_S:
                _log.error("the database of the store does not answer; what is not written is lost")
                return

    def _run(self) -> None:
        last_heartbeat = time.monotonic()
        while True:
            self.busy_since = None
            batch = self._take_batch(last_heartbeat + self._timings.heartbeat_s - time.monotonic())
            self.busy_since = time.monotonic()
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
        tries_left, delay = MAX_TRIES, 0.1
        while tries_left and (batch := [op for op in batch if isinstance(op, AppendEvents) or not op.is_given_up]):
            try:
                is_committed = self._run_transaction(batch)
            except Exception as error:  # noqa: BLE001  # if the thread ended, readers would wait forever
                tries_left -= 1
                self._on_database_error(error, batch, retries_left=tries_left)
                time.sleep(delay)
                if self._database.is_outage(error):
                    # It may refuse writes although it can be reached, as on a full disk.
                    batch, tries_left = self._await_database(batch), MAX_TRIES
                    delay = min(delay * 2, MAX_RECONNECT_DELAY_S)
            else:
                if is_committed:
                    self._report_written(batch)
                    return
                self._roll_back(batch)
        if batch:
            self._fail_batch(batch)

    def _report_written(self, batch: list[WriteOp]) -> None:
        self.healthy = True
        self._logs.on_written([op for op in batch if op not in self._lost_ops], self._lost_ops)

    def _fail_batch(self, batch: list[WriteOp]) -> None:
        self._incomplete |= {op.log.id for op in batch if isinstance(op, AppendEvents)}
        self._logs.on_write_failed(batch)

    def _await_database(self, batch: list[WriteOp]) -> list[WriteOp]:
        """Waits until the database can be reached again. Returns the steps to write then; none if the server exits."""
        outage = Outage(batch, is_uncertain=self._database.commit_is_uncertain)
        while True:
            if outage.refuses_changes:
                outage.batch = self._refuse_changes(outage.batch)
            if (last_number := self._try_reconnect(outage)) is not None:
                return self._list_unwritten(outage, last_number)
            if not self._is_closing:
                self._queue_during(outage)
            elif outage.is_given_up():
                self._fail_batch(outage.batch + outage.queued)
                return []
            else:
                time.sleep(0.1)

    def _try_reconnect(self, outage: Outage) -> int | None:
        """Returns the number of the last transaction in the database; None if it cannot be reached."""
        try:
            last_number = self._database.reconnect()
        except Exception as error:  # noqa: BLE001  # as in `_write_batch`
            if str(error) != outage.last_error:
                outage.last_error = str(error)
                _log.error("the database of the store cannot be reached", error=outage.last_error)
            return None
        self.watch.restart()
        _log.info("the database of the store can be reached again", seconds=round(outage.elapsed_s, 1))
        return last_number

    def _list_unwritten(self, outage: Outage, last_number: int) -> list[WriteOp]:
        """Returns the operations to write after an outage: without the batch if its interrupted COMMIT was made."""
        if outage.is_uncertain and last_number > self._database.commit_number:
            self._database.commit_number = last_number
            self._report_written(outage.batch)
            return outage.queued
        return outage.batch + outage.queued

    def _queue_during(self, outage: Outage) -> None:
        """Waits for new operations, of which changes are refused, until the database is tried again."""
        new_ops = self._take_batch(outage.next_delay())
        if new_ops and new_ops[-1] is None:
            self._queue.put(None)
        outage.queued += self._refuse_changes([op for op in new_ops if op is not None])

    def _refuse_changes(self, ops: list[WriteOp]) -> list[WriteOp]:
        """Reports the changes among these operations as failed and returns the rest."""
        if changes := [op for op in ops if isinstance(op, StoreChange)]:
            self._logs.on_write_failed([*changes])
        return [op for op in ops if not isinstance(op, StoreChange)]

    def _drop_after_gap(self, batch: list[WriteOp]) -> list[WriteOp]:
        """Drops the steps that follow a failed step of the same response, so that stored logs have no gaps."""
        dropped: list[WriteOp] = []
        for op in batch:
            if isinstance(op, AppendEvents) and op.is_repair:
                self._incomplete.discard(op.log.id)
            elif isinstance(op, AppendEvents) and op.log.id in self._incomplete:
                dropped.append(op)
        if dropped:
            self._logs.on_write_failed(dropped)
        return [op for op in batch if op not in dropped]

    def _run_transaction(self, batch: list[WriteOp]) -> bool:
        """Writes a batch. Sets `_lost_ops`. Returns False if a change was given up, so that nothing is committed."""
        self._lost_ops, began_at = [], time.monotonic()
        self._database.begin(sync=any(_needs_sync(op) for op in batch))
        steps: list[AppendEvents] = []
        for op in batch:
            if isinstance(op, StoreChange):
                self._append_steps(steps)
                steps = []
                op.apply(self._database)
            else:
                steps.append(op)
        self._append_steps(steps)
        if not all(op.begin_commit() for op in batch if isinstance(op, StoreChange)):
            return False
        self._database.commit()
        self.report_commit(time.monotonic() - began_at)
        return True

    def _append_steps(self, ops: list[AppendEvents]) -> None:
        """Writes steps, and the items that finished ones add to conversations."""
        self._database.insert_responses([op.log for op in ops if op.is_first], self._name)
        for op in ops:
            if op.completion is not None:
                self._database.completions.insert_completion(op.log.owner, *op.completion, op.log.blobs)
        steps = [
            NewStep(
                *(op.log.owner, op.log.id, op.entries, op.log.keeps_details, op.log.continuation is not None),
                *(op.log.stats, op.log.pack_record),
            )
            for op in ops
        ]
        lost_ids = self._database.append_steps(steps, self._name)
        for op in ops:
            if is_terminal(op.entries) and op.log.conversation_id and op.log.id not in lost_ids:
                conversation = self._database.conversations
                conversation.add_items(op.log.owner, op.log.conversation_id, conversation_items(op.log))
        self._lost_ops += [op for op in ops if op.log.id in lost_ids]

    def _heartbeat(self) -> None:
        """Writes the heartbeat, cares for rows of dead processes and, every `sweep_interval_s`, for expired ones."""
        self._database.begin(sync=False)
        self._database.save_heartbeat(self._name, time.time(), self._logs.figures)
        self._database.commit()
        self.healthy = True
        self.watch.observe(writers := self._database.list_heartbeats())
        self._logs.on_heartbeat(self._database.owned_responses(self._name))
        self._upkeep.claim_responses()
        self._upkeep.claim_batches(with_batches=self.runs_batches)
        self._upkeep.purge_rows()
        self._upkeep.delete_writers(writers)
        if time.monotonic() - self._last_sweep >= self._timings.sweep_interval_s or not self._last_sweep:
            is_done = self._upkeep.delete_expired(
                time.time(), self._timings.retention_s, self._max_bytes, self.owner_bytes()
            )
            self.num_bytes = self._database.measure_bytes()
            self._last_sweep = time.monotonic() if is_done else 0.0  # else the next heartbeat continues

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
            if self._database.is_outage(error):
                self._write_batch(self._await_database([]))

    def _on_database_error(self, error: Exception, batch: Sequence[WriteOp] = (), **details: Any) -> None:
        self.healthy = False
        _log.error("store write failed", error=str(error), **details)
        self._roll_back(batch)

    def _roll_back(self, batch: Sequence[WriteOp]) -> None:
        with contextlib.suppress(Exception):
            self._database.rollback()
        if not self._database.commit_is_uncertain:
            for op in batch:
                if isinstance(op, StoreChange):
                    op.end_commit()


def _needs_sync(op: WriteOp) -> bool:
    """Tells whether an operation must be on disk once it is reported as written, so that a power cut does not undo it.

    A client knows of a change and of the end of a response; a tool that was called has changed something elsewhere.
    """
    return isinstance(op, StoreChange) or is_terminal(op.entries) or begins_tool_run(op.entries)
