"""The logs that a store has in memory, and what the results of its writer mean for them.

A log is live while a turn of this process appends to it. If a step cannot be written, the log has failed: its missing
steps are written again when it has ended. A remote log is written by another process. All others are in the database
only; those that ended or were read last are kept.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Concatenate, ParamSpec

import structlog
from msgspec import Struct

from antiphon.app.store.base import ClaimedResponse, OwnedResponse
from antiphon.app.store.database import Database
from antiphon.app.store.history.event_tables import StoredNews
from antiphon.app.store.history.recent_logs import RecentLogs
from antiphon.app.store.writing.write_ops import AppendEvents, OpQueue, StoreChange, WriteOp
from antiphon.app.turn_types.blob_urls import NO_BLOBS
from antiphon.app.turn_types.event_log import EventLog, LogEntry, has_output, is_terminal
from antiphon.state.recovery import failure_events

P = ParamSpec("P")
DELETED_MESSAGE = "The response was deleted."
UNREADABLE_MESSAGE = "The stored response is damaged from here on. Create it again."
_log = structlog.get_logger(__name__)


def _on_event_loop(
    handle: Callable[Concatenate["TrackedLogs", P], None],
) -> Callable[Concatenate["TrackedLogs", P], None]:
    """Makes a method run on the event loop, unless that is closed: a thread may outlast it in a frozen database."""

    @wraps(handle)
    def schedule(logs: "TrackedLogs", /, *values: P.args, **named: P.kwargs) -> None:
        with contextlib.suppress(RuntimeError):
            logs.loop.call_soon_threadsafe(partial(handle, logs, *values, **named))

    return schedule


class TrackedLogs:
    """The logs of one store by owner and id. Only the methods `on_…` may be called outside the event loop."""

    def __init__(self, queue: OpQueue, database: Database) -> None:
        self.loop = asyncio.get_running_loop()
        self._queue, self._database = queue, database
        self.live: dict[tuple[str, str], EventLog] = {}
        self.remote: dict[tuple[str, str], EventLog] = {}
        self.recent = RecentLogs()
        self.deleted: set[str] = set()
        """Ids of logs whose deletion is not committed yet."""
        self.num_deletions = 0
        self.cancel_turn: Callable[[str], None] = lambda _: None
        """Receives the id of each response here that another process cancels, deletes or takes over."""
        self.follow_remote: Callable[[EventLog], None] = lambda _: None
        """Begins to read the new events of a log that another process writes."""
        self.report_figures: Callable[[], str] = lambda: ""
        """Returns the figures of this server, for the next heartbeat."""
        self.figures = ""
        """The figures that were reported last. Any thread may read them."""
        self.on_claimed: Callable[[ClaimedResponse], None] = lambda _: None
        """Receives each response of a dead process that this one has claimed."""
        self._failed: dict[tuple[str, str], EventLog] = {}
        self._repairing: set[str] = set()
        """Ids of failed logs whose missing steps are queued."""
        self._persisted: set[str] = set()
        """Ids of live responses that are in the database."""

    def find(self, owner: str, response_id: str) -> EventLog | None:
        """Returns the owner's log with this id, if it is in memory."""
        key = owner, response_id
        tables = self.live, self.remote, self._failed
        return next((table[key] for table in tables if key in table), None) or self.recent.find(*key)

    def adopt(self, log: EventLog) -> None:
        """Tracks a log that another process began and this one continues.

        Readers of the log as that of the other process stay there: its events come from the database.
        """
        self.live[log.owner, log.id] = log
        self._persisted.add(log.id)

    def note_output(self, write: Callable[[EventLog, int], None]) -> Callable[[EventLog, int], None]:
        """Returns `write` for an adopted log, whose first output ends the count of processes that gave it none."""

        def write_first(log: EventLog, first: int) -> None:
            write(log, first)
            if has_output(log.entries[first:]):
                log.on_append = write
                self.enqueue_change(lambda database: database.continuations.clear_attempts(log.id))

        return write_first

    def list_running(self, owner: str) -> list[EventLog]:
        """Returns the owner's logs that are not, or not completely, in the database, latest first."""
        logs = [*reversed(self.live.items()), *self._failed.items()]
        return [log for (log_owner, _), log in logs if log_owner == owner]

    def delete(self, owner: str, ids: Sequence[str]) -> StoreChange:
        """Deletes a response, or all choices of a chat completion. They are not found from now on."""
        for key in ((owner, response_id) for response_id in ids):
            self.recent.drop(*key)
            self.remote.pop(key, None)
            self._failed.pop(key, None)
            if (live := self.live.pop(key, None)) is not None:
                self._stop_writing(live)
        self._persisted.difference_update(ids)
        self.deleted.update(ids)
        self.num_deletions += 1
        change = self.enqueue_change(lambda database: database.delete_response(ids[0]))
        # Not when a request ends: its client may leave, and the logs must not be read again before the commit.
        change.done.add_done_callback(lambda _: self.deleted.difference_update(ids))
        return change

    def enqueue_change(self, apply: Callable[[Database], object]) -> StoreChange:
        """Queues a change for the writer's next transaction."""
        change = StoreChange(apply, self.loop.create_future())
        self._queue.put(change)
        return change

    # Methods for the threads of the store

    @_on_event_loop
    def on_remote_news(self, log: EventLog, news: StoredNews) -> None:
        """Receives the next events of a remote log."""
        if news.entries:
            log.append_stored(news.entries)
        if news.has_writer:
            return
        is_deleted = news.is_readable and not is_terminal(log.entries)
        if is_deleted:
            log.restore_unconfirmed()
        if not is_terminal(log.entries):
            events = [entry.event for entry in log.entries]
            reason = DELETED_MESSAGE if news.is_readable else UNREADABLE_MESSAGE
            missing = failure_events(events, code="server_error", message=reason)
            log.append_stored([LogEntry.from_event(event) for event in missing])
        log.end_stored()
        if self.remote.pop((log.owner, log.id), None) is not None and not is_deleted:
            self.recent.add(log)

    @_on_event_loop
    def on_orphan_claimed(self, claimed: ClaimedResponse) -> None:
        """Receives a response of a dead process that belongs to this one now."""
        self.on_claimed(claimed)

    @_on_event_loop
    def on_heartbeat(self, owned: dict[str, OwnedResponse]) -> None:
        """Receives this writer's unfinished responses by their ids."""
        for (_, response_id), log in [*self.live.items(), *self._failed.items()]:
            state = owned.get(response_id)
            if state is not None:
                log.is_read_elsewhere = log.is_read_elsewhere or state.is_wanted
                if state.is_cancelled:
                    self.cancel_turn(response_id)
            elif response_id in self._persisted:
                self._release_log(log)
        self.figures = self.report_figures()
        for key, log in list(self._failed.items()):
            if not log.ended or log.id in self._repairing:
                continue
            if log.id in owned:
                missing = tuple(log.entries[self._database.count_events(log.id) :])
                self._repairing.add(log.id)
                self._queue.put(AppendEvents(log, missing, is_repair=True))
            else:  # the database has never contained it
                del self._failed[key]
                log.blobs = NO_BLOBS
                self.recent.add(log)

    @_on_event_loop
    def on_written(self, committed: list[WriteOp], dropped: list[WriteOp]) -> None:
        """Receives committed operations, and steps dropped because the response was taken over or deleted elsewhere."""
        for op in committed:
            if isinstance(op, StoreChange):
                op.succeed()
                continue
            log, entries = op.log, op.entries
            key = log.owner, log.id
            if key in self.live or key in self._failed:  # else it was deleted meanwhile
                self._persisted.add(log.id)
            log.blobs = NO_BLOBS
            num_committed = entries[-1].event.sequence_number + 1 if entries else 0
            log.mark_kept(num_committed)
            log.publish(num_committed)
            if is_terminal(entries):
                if log.stats is not None:
                    log.stats.times.durable = time.monotonic()
                log.pack_record = log.continuation = None
                self._persisted.discard(log.id)
                self._repairing.discard(log.id)
                if (self.live.pop(key, None) or self._failed.pop(key, None)) is not None:
                    self.recent.add(log)
        for op in dropped:
            if isinstance(op, AppendEvents):
                self._release_log(op.log)

    @_on_event_loop
    def on_write_failed(self, ops: list[WriteOp]) -> None:
        """Receives operations whose transaction failed in all attempts, and steps that follow such a failed step.

        Publishes these steps, since readers must not wait forever, and keeps their logs in memory.
        """
        for op in ops:
            if isinstance(op, StoreChange):
                op.fail()
                continue
            log = op.log
            self._repairing.discard(log.id)
            if self.live.pop((log.owner, log.id), None) is not None:
                self._stop_writing(log)
                self._failed[log.owner, log.id] = log

    @_on_event_loop
    def on_wanted(self, response_id: str) -> None:
        """Receives the id of a response that another server reads."""
        if self._is_live(response_id):
            self.enqueue_change(lambda database: database.announce(response_id))

    @_on_event_loop
    def on_remote_cancel(self, response_id: str) -> None:
        """Receives the id of a response that another server cancels."""
        if self._is_live(response_id):
            self.cancel_turn(response_id)

    def _is_live(self, response_id: str) -> bool:
        return any(live_id == response_id for _, live_id in self.live)

    def _release_log(self, log: EventLog) -> None:
        """Follows a log that another process has taken over or deleted, as any other of that process; ends its turn.

        A process that pauses for longer than its lease loses its logs in this way.
        """
        self._persisted.discard(log.id)
        self._repairing.discard(log.id)
        key = log.owner, log.id
        if (self.live.pop(key, None) or self._failed.pop(key, None)) is not None:
            _log.warning("another server has taken a response over, or deleted it", response=log.id)
            log.lose_writer()
            self.remote[key] = log
            self.follow_remote(log)
            self.cancel_turn(log.id)

    def _stop_writing(self, log: EventLog) -> None:
        """Gives up a log. Its readers see all that it has and will have."""
        log.on_append = None
        log.mark_given_up()
        log.publish()


class StoreDebug(Struct, frozen=True):
    """Internals of a store, as tests look at them."""

    database: Database
    """For the event loop only."""
    reader: Database
    """For any thread. In memory, it is `database`."""
    logs: TrackedLogs
