"""A persistent store, in a database that several processes may share.

Logs of responses that run in this process are in memory, and each of their steps is written to the database. Steps of
a background response are published after they are committed; for other responses only the last step waits for that.
In a database that ends with the process, all steps are written together with the last one.
Responses that have ended, or run in another process, are read from the database. A subclass reads the new events of
the latter, and passes them to `_add_remote_entries`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from antiphon.app.base.event_log import EventLog, LogEntry, is_terminal
from antiphon.app.requests.chat.stored import ChatMessages
from antiphon.app.store import writer_lease
from antiphon.app.store.base import StoredCompletion, StoredConversation
from antiphon.app.store.database import Database
from antiphon.app.store.history.reads import PersistentHistory
from antiphon.app.store.persistent_completions import PersistentCompletions
from antiphon.app.store.recent_logs import RecentLogs
from antiphon.app.store.write_ops import NOT_WRITABLE, AppendEvents, OverdueSteps, StoreChange, StoreTimings, WriteOp
from antiphon.app.store.writer import StoreWriter
from antiphon.events.inputs import AnyInput
from antiphon.state.recovery import failure_events

T = TypeVar("T")
_log = structlog.get_logger(__name__)

DELETED_MESSAGE = "The response was deleted."


class PersistentStore:
    """Stores logs for `timings.retention_s`, up to `max_bytes` in total. Must be closed.

    The writer thread uses the first of the connections, the event loop the second, and threads that read the third.
    """

    def __init__(
        self, name: str, databases: tuple[Database, Database, Database], timings: StoreTimings, max_bytes: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timings = timings
        self.name = name
        self._live: dict[tuple[str, str], EventLog] = {}
        self._recent = RecentLogs()
        self._remote: dict[tuple[str, str], EventLog] = {}
        """Logs that another process writes."""
        self._deleted: set[str] = set()
        self._num_deletions = 0
        self._failed: dict[tuple[str, str], EventLog] = {}
        """Logs with a step that could not be written. The missing steps are written again when the log has ended."""
        self._repairing: set[str] = set()
        self._persisted: set[str] = set()
        """Ids of live responses that are in the database."""
        self._on_cancel_request: Callable[[str], None] = lambda _: None
        self._is_volatile = databases[0].is_volatile
        self._writer = StoreWriter(databases[0], name, self, timings, max_bytes)
        self._database, self._reader = databases[1:]
        self._overdue_steps = OverdueSteps(self._writer.is_overdue, self._live)
        self.history = PersistentHistory(self._reader, self._cached_log, self._list_running, self._deleted)
        self.completions = PersistentCompletions(self._database, self._deleted, self._commit)

    async def close(self) -> None:
        """Writes everything that is pending and closes the database."""
        self._overdue_steps.close()
        await asyncio.to_thread(self._writer.close)
        self._database.close()
        self._reader.close()

    def _follow_remote(self, log: EventLog) -> None:
        """Begins to read the new events of a log in `_remote`, until it has ended."""
        raise NotImplementedError

    def add_completion(self, completion: StoredCompletion, messages: ChatMessages, logs: Sequence[EventLog]) -> None:
        """Stores a chat completion with the logs of its choices from now on."""
        for log in logs:
            self.add_log(log, (completion, messages) if log.id == completion.id else None)

    def add_log(self, log: EventLog, completion: tuple[StoredCompletion, ChatMessages] | None = None) -> None:
        """Stores a log from now on, with the chat completion that it is the first choice of."""
        self._live[log.owner, log.id] = log
        log.listener = self
        entries, is_last = tuple(log.entries), is_terminal(log.entries)
        if self._publishes_committed(log):
            log.withhold(0)
        elif is_last:
            log.withhold(len(entries) - 1)
        first_entries = () if self._is_volatile and not is_last else entries
        self._writer.enqueue(AppendEvents(log, first_entries, is_first=True, completion=completion))

    def on_append(self, log: EventLog, first: int) -> None:
        """Writes the new entries of a log; in a database that ends with the process, all of them with the last step."""
        entries = tuple(log.entries[first:])
        is_last = is_terminal(entries)
        if is_last and not self._publishes_committed(log):
            log.withhold(first)
        if is_last or not self._is_volatile:
            self._writer.enqueue(AppendEvents(log, tuple(log.entries) if self._is_volatile else entries))

    def _publishes_committed(self, log: EventLog) -> bool:
        """Tells whether no step of a log is published before it is committed, not only not the last one."""
        return log.base_response.background and not self._is_volatile

    def _list_running(self, owner: str) -> list[EventLog]:
        logs = [*reversed(self._live.items()), *self._failed.items()]
        return [log for (log_owner, _), log in logs if log_owner == owner]

    async def prepare_read(self, owner: str, response_id: str = "") -> None:
        """Returns at once: reads of a local file are short."""

    def _cached_log(self, owner: str, response_id: str) -> EventLog | None:
        key = owner, response_id
        tables = self._remote, self._live, self._failed
        return next((table[key] for table in tables if key in table), None) or self._recent.find(*key)

    async def read_log(self, owner: str, response_id: str) -> EventLog | None:
        """Returns the log of the owner's response, whichever process writes it. A thread reads the database."""
        while (cached := self._cached_log(owner, response_id)) is None and response_id not in self._deleted:
            num_deletions = self._num_deletions
            found = await asyncio.to_thread(self._reader.find_log, owner, response_id)
            if num_deletions == self._num_deletions and self._cached_log(owner, response_id) is None:
                return self._track(found)  # else it may have been deleted, or read by another request
        return cached

    def _track(self, found: tuple[EventLog, str | None] | None) -> EventLog | None:
        """Keeps a log that was read from the database. Returns it."""
        if found is None:
            return None
        log, writer = found
        if writer is None:
            self._recent.add(log)
        else:
            self._remote[log.owner, log.id] = log
            self._follow_remote(log)
        return log

    def unavailable_reason(self) -> str | None:
        """Returns the reason why nothing can be stored now, or None."""
        return None if self._writer.healthy else NOT_WRITABLE

    async def request_cancel(self, log: EventLog) -> None:
        """Asks the process that writes a log to cancel its turn."""
        await self._commit(lambda database: database.request_cancel(log.id))

    def on_cancel_request(self, callback: Callable[[str], None]) -> None:
        """Sets the callback for ids of responses that are to end."""
        self._on_cancel_request = callback

    async def delete_response(self, owner: str, response_id: str) -> bool:
        """Deletes the owner's response. Returns whether it existed."""
        if await self.read_log(owner, response_id) is None:
            return False
        await self._delete_logs(owner, (response_id,))
        return True

    async def delete_completion(self, owner: str, completion_id: str) -> bool:
        """Deletes the owner's chat completion with all its choices. Returns whether it existed."""
        completion = self.completions.find_completion(owner, completion_id)
        if completion is None:
            return False
        await self._delete_logs(owner, completion.choice_ids)
        return True

    async def _delete_logs(self, owner: str, ids: Sequence[str]) -> None:
        """Deletes a response, or all choices of a chat completion. They are not found from now on."""
        for key in ((owner, response_id) for response_id in ids):
            self._recent.drop(*key)
            self._remote.pop(key, None)
            self._failed.pop(key, None)
            if (live := self._live.pop(key, None)) is not None:
                live.listener = None
                live.publish()
        self._persisted.difference_update(ids)
        self._deleted.update(ids)
        self._num_deletions += 1
        change = self._enqueue_change(lambda database: database.delete_response(ids[0]))
        # Not when this coroutine ends: its client may leave, and the logs must not be read again before the commit.
        change.done.add_done_callback(lambda _: self._deleted.difference_update(ids))
        await change.wait_done()

    async def save_conversation(self, owner: str, conversation: StoredConversation) -> None:
        """Stores a conversation, or its new metadata."""
        await self._commit(lambda database: database.conversations.save_conversation(owner, conversation))

    def find_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        """Returns the owner's conversation with this id."""
        return self._database.conversations.find_conversation(owner, conversation_id)

    async def delete_conversation(self, owner: str, conversation_id: str) -> None:
        """Deletes a conversation and its items."""
        await self._commit(lambda database: database.conversations.delete_conversation(owner, conversation_id))

    async def add_items(self, owner: str, conversation_id: str, items: Sequence[AnyInput]) -> None:
        """Appends items to a conversation."""
        await self._commit(lambda database: database.conversations.add_items(owner, conversation_id, items))

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Deletes an item of a conversation. Returns whether it existed."""
        return await self._commit(lambda database: database.conversations.delete_item(owner, conversation_id, item_id))

    def _enqueue_change(self, apply: Callable[[Database], object]) -> StoreChange:
        """Queues a change for the writer's next transaction."""
        change = StoreChange(apply, self._loop.create_future())
        self._writer.enqueue(change)
        return change

    async def _commit(self, apply: Callable[[Database], T]) -> T:
        """Applies a change and returns its result once it is durable. The change continues if the client leaves."""
        result: T = await self._enqueue_change(apply).wait_done()
        return result

    def _call_on_loop(self, handle: Callable[..., None], *values: object) -> None:
        """Calls a handler on the event loop, unless that is closed: a thread may outlast it in a frozen database."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(handle, *values)

    # Methods of `WriteListener`, called in the writer's thread, and their handlers on the event loop

    def on_written(self, committed: list[WriteOp], dropped: list[WriteOp]) -> None:
        """Forwards the results of a transaction to the event loop."""
        self._call_on_loop(self._handle_written, committed, dropped)

    def on_write_failed(self, ops: list[WriteOp]) -> None:
        """Forwards a failed transaction to the event loop."""
        self._call_on_loop(self._handle_failed, ops)

    def on_write_delayed(self, ops: list[WriteOp]) -> None:
        """Forwards operations that wait for the end of an outage to the event loop."""
        self._call_on_loop(self._handle_delayed, ops)

    def on_heartbeat(self, cancel_requested: dict[str, bool]) -> None:
        """Forwards the responses of this process, and cancellation requests for them, to the event loop."""
        self._call_on_loop(self._handle_heartbeat, cancel_requested)

    def _handle_heartbeat(self, cancel_requested: dict[str, bool]) -> None:
        for (_, response_id), log in [*self._live.items(), *self._failed.items()]:
            if cancel_requested.get(response_id):
                self._on_cancel_request(response_id)
            elif response_id in self._persisted and response_id not in cancel_requested:
                self._release_log(log)
        for key, log in list(self._failed.items()):
            if not log.ended or log.id in self._repairing:
                continue
            if log.id in cancel_requested:
                missing = tuple(log.entries[self._database.count_events(log.id) :])
                self._repairing.add(log.id)
                self._writer.enqueue(AppendEvents(log, missing, is_repair=True))
            else:  # the database has never contained it
                del self._failed[key]
                self._recent.add(log)

    def _handle_written(self, committed: list[WriteOp], dropped: list[WriteOp]) -> None:
        for op in committed:
            if isinstance(op, StoreChange):
                op.succeed()
                continue
            log, entries = op.log, op.entries
            self._persisted.add(log.id)
            log.publish(entries[-1].event.sequence_number + 1 if entries else 0)
            if is_terminal(entries):
                self._persisted.discard(log.id)
                self._repairing.discard(log.id)
                tracked = self._live.pop((log.owner, log.id), None) or self._failed.pop((log.owner, log.id), None)
                if tracked is not None:
                    self._recent.add(log)
        for op in dropped:
            if isinstance(op, AppendEvents):
                self._release_log(op.log)

    def _handle_delayed(self, ops: list[WriteOp]) -> None:
        """Publishes the last steps of foreground responses, whose clients wait for them."""
        for op in ops:
            if isinstance(op, AppendEvents) and op.entries and not op.log.base_response.background:
                op.log.publish(op.entries[-1].event.sequence_number + 1)

    def _handle_failed(self, ops: list[WriteOp]) -> None:
        """Publishes unwritten steps, since readers must not wait forever, and keeps their logs in memory."""
        for op in ops:
            if isinstance(op, StoreChange):
                op.fail()
                continue
            log = op.log
            self._repairing.discard(log.id)
            if self._live.pop((log.owner, log.id), None) is not None:
                log.listener = None
                log.publish()
                self._failed[log.owner, log.id] = log

    def _release_log(self, log: EventLog) -> None:
        """Stops storing a log that another process has deleted or ended as orphaned, and cancels its turn."""
        self._persisted.discard(log.id)
        key = log.owner, log.id
        if (self._live.pop(key, None) or self._failed.pop(key, None)) is not None:
            log.listener = None
            log.publish()
            self._on_cancel_request(log.id)

    def _add_remote_entries(self, log: EventLog, entries: Sequence[LogEntry], *, has_writer: bool) -> None:
        """Adds events that another process has written; without a writer, the response has ended or was deleted."""
        if entries:
            log.add_stored(entries)
            log.publish()
        if has_writer:
            return
        if not is_terminal(log.entries):
            events = [entry.event for entry in log.entries]
            missing = failure_events(events, code="server_error", message=DELETED_MESSAGE)
            log.add_stored([LogEntry.from_event(event) for event in missing])
            log.publish()
        log.end_log()
        if self._remote.pop((log.owner, log.id), None) is not None:
            self._recent.add(log)

    def is_alive(self, name: str, heartbeat_at: float) -> bool:
        """Tells whether a writer is alive."""
        return name == self.name or writer_lease.is_alive(name, heartbeat_at, self._timings.lease_s)
