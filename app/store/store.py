"""A store of event logs by owner and id, in a database that several processes may share.

Logs of responses that run in this process are in memory, and each of their steps is written to the database. Steps of
a background response are published after they are committed; for other responses only the last step waits for that.
In a database that ends with the process, all steps are written together with the last one.
Responses that have ended, or run in another process, are read from the database. A subclass reads the new events of
the latter, and passes them to `TrackedLogs.on_remote_entries`.

For an owner, data of other owners does not exist. Changes return when they are durable. They raise `ApiError` 503, and
change nothing, if they cannot be stored.
"""

import asyncio
import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from antiphon.app.requests.batches.body import read_file_id
from antiphon.app.requests.chat.stored import ChatMessages, CompletionsQuery
from antiphon.app.store.base import StoredCompletion, StoredConversation
from antiphon.app.store.batches.records import FILE_PIECE_BYTES, StoredFile
from antiphon.app.store.database import Database
from antiphon.app.store.history.bounded_read import read_in_thread
from antiphon.app.store.history.claimed_responses import ClaimedResponses
from antiphon.app.store.history.reads import HistoryReads
from antiphon.app.store.writing.outage import is_overdue
from antiphon.app.store.writing.tracked_logs import StoreDebug, TrackedLogs
from antiphon.app.store.writing.write_ops import NOT_WRITABLE, AppendEvents, OpQueue, StoreChange, StoreTimings
from antiphon.app.store.writing.writer import StoreWriter
from antiphon.app.turn_types.blob_urls import NO_BLOBS, BlobContents
from antiphon.app.turn_types.event_log import EventLog, is_terminal
from antiphon.events.inputs import AnyInput

OVERDUE_CHECK_INTERVAL_S = 0.5
"""Time between two checks for steps that are overdue."""
MAX_OWNER_BYTES = 4 << 30
"""Bytes that all files of one owner may take in a database on disk."""
MAX_VOLATILE_OWNER_BYTES = 512 << 20
"""Bytes of one owner's files in a database that ends with the process, which is in memory."""
T = TypeVar("T")


class ResponseStore:
    """Stores logs for `timings.retention_s`, up to `max_bytes` in total. Must be closed.

    The writer thread uses the first of the connections, the event loop the second, and threads that read the third.
    """

    def __init__(
        self, name: str, databases: tuple[Database, Database, Database], timings: StoreTimings, max_bytes: int
    ) -> None:
        self.name, self._timings, self.lease_s = name, timings, timings.lease_s
        self.max_owner_bytes = MAX_VOLATILE_OWNER_BYTES if databases[0].is_volatile else MAX_OWNER_BYTES
        """Bytes that all files of one owner may take."""
        self.max_kept_bytes = max_bytes // 2
        """Bytes that the files of all owners that belong to no batch may take: the rest is left to responses."""
        self._queue: OpQueue = queue.SimpleQueue()
        self._database, self._reader = databases[1:]
        self._is_volatile = databases[0].is_volatile
        self._logs = TrackedLogs(self._queue, self._database)
        self._logs.follow_remote = self._follow_remote
        self.debug = StoreDebug(self._database, self._reader, self._logs)
        self._claimed = ClaimedResponses(self._reader, self._logs, name)
        self.history = HistoryReads(self._reader, self._logs)
        self._writer = StoreWriter(databases[0], name, self._queue, self._logs, timings, max_bytes)
        self.servers = self._writer.watch
        self._overdue_timer = asyncio.get_running_loop().call_later(OVERDUE_CHECK_INTERVAL_S, self._show_overdue)

    async def close(self) -> None:
        """Writes everything that is pending and closes the database."""
        self._overdue_timer.cancel()
        self._claimed.close()
        await asyncio.to_thread(self._writer.close)
        self._database.close()
        self._reader.close()

    def _show_overdue(self) -> None:
        """Shows the last steps whose clients wait for a database that does not answer: the writer waits itself."""
        self._overdue_timer = asyncio.get_running_loop().call_later(OVERDUE_CHECK_INTERVAL_S, self._show_overdue)
        if is_overdue(self._writer.busy_s()):
            for log in list(self._logs.live.values()):
                if not self._publishes_committed(log):
                    log.publish(len(log.entries))

    def _follow_remote(self, log: EventLog) -> None:
        """Begins to read the new events of a remote log, until it has ended."""
        raise NotImplementedError

    def add_completion(self, completion: StoredCompletion, messages: ChatMessages, logs: Sequence[EventLog]) -> None:
        """Stores a chat completion with the logs of its choices from now on."""
        for log in logs:
            self.add_log(log, (completion, messages) if log.id == completion.id else None)

    def add_log(self, log: EventLog, completion: tuple[StoredCompletion, ChatMessages] | None = None) -> None:
        """Stores a log from now on, with the chat completion that it is the first choice of."""
        self._logs.live[log.owner, log.id] = log
        log.on_append = self._write_entries
        entries, is_last = tuple(log.entries), is_terminal(log.entries)
        if self._publishes_committed(log):
            log.withhold(0)
        elif is_last:
            log.withhold(len(entries) - 1)
        first_entries = () if self._is_volatile and not is_last else entries
        self._queue.put(AppendEvents(log, first_entries, is_first=True, completion=completion))
        if self._is_volatile:
            log.mark_kept(math.inf)

    def continue_turns(
        self, digests: Mapping[str, str], continue_within_s: float, on_claimed: Callable[[EventLog], None]
    ) -> None:
        """Continues the responses of processes that are dead, if their models are among those here.

        `digests` has the digest of each model by its name. `on_claimed` gets each such log on the event loop, with the
        events that are stored; it belongs to this process then. A response of another model is left to other processes
        for `continue_within_s`, then it is ended.
        """
        self._claimed.on_claimed = on_claimed
        self._writer.continue_turns(digests, continue_within_s)

    def adopt_log(self, log: EventLog) -> None:
        """Stores the further steps of a log that another process began."""
        self._logs.adopt(log)
        log.on_append = self._logs.note_output(self._write_entries)
        log.was_read = True
        log.mark_kept(len(log.entries))
        log.withhold(len(log.entries))

    def _write_entries(self, log: EventLog, first: int) -> None:
        """Writes the new entries of a log; in a database that ends with the process, all of them with the last step."""
        entries = tuple(log.entries[first:])
        is_last = is_terminal(entries)
        if is_last and not self._publishes_committed(log):
            log.withhold(first)
        if is_last or not self._is_volatile:
            self._queue.put(AppendEvents(log, tuple(log.entries) if self._is_volatile else entries))

    def _publishes_committed(self, log: EventLog) -> bool:
        """Tells whether no step is published before it is committed: another process may go on with the events."""
        return (log.base_response.background or log.continuation is not None) and not self._is_volatile

    async def prepare_read(self, owner: str, response_id: str = "") -> None:
        """Returns at once: reads of a local file are short."""

    async def read_log(self, owner: str, response_id: str) -> EventLog | None:
        """Returns the log of the owner's response, whichever process writes it. A thread reads the database."""
        while (cached := self._logs.find(owner, response_id)) is None and response_id not in self._logs.deleted:
            num_deletions = self._logs.num_deletions
            found = await read_in_thread(self._reader.find_log, owner, response_id)
            if num_deletions == self._logs.num_deletions and self._logs.find(owner, response_id) is None:
                return self._track(found)  # else it may have been deleted, or read by another request
        return cached

    def _track(self, found: tuple[EventLog, str | None] | None) -> EventLog | None:
        """Keeps a log that was read from the database. Returns it."""
        if found is None:
            return None
        log, writer = found
        if writer is None:
            self._logs.recent.add(log)
        else:
            self._logs.remote[log.owner, log.id] = log
            self._follow_remote(log)
        return log

    @property
    def is_durable(self) -> bool:
        """True if the data stay when this process has ended."""
        return not self._is_volatile

    def limit_owners(self, owner_bytes: Callable[[], Mapping[str, int]]) -> None:
        """Deletes the oldest responses of these owners above their limits. The writer's thread calls the function."""
        self._writer.owner_bytes = owner_bytes

    @property
    def num_waiting(self) -> int:
        """Number of steps and changes that wait for the writer."""
        return self._queue.qsize()

    @property
    def num_bytes(self) -> int:
        """Size of the database in bytes, as its writer measured it a moment ago."""
        return self._writer.num_bytes

    def report_figures(self, report: Callable[[], str]) -> None:
        """Sets what returns the figures of this server. They are in the store from one of the next heartbeats on."""
        self._logs.report_figures = report

    def report_at_once(self) -> None:
        """Leaves the figures of this server in the store now, and not with the next heartbeats."""
        figures = self._logs.figures = self._logs.report_figures()
        self._logs.enqueue_change(lambda database: database.save_heartbeat(self.name, time.time(), figures))

    def watch_commits(self, report: Callable[[float], None]) -> None:
        """Sets what receives the duration of each transaction of the writer, in its thread."""
        self._writer.report_commit = report

    def unavailable_reason(self) -> str | None:
        """Returns the reason why nothing can be stored now, or None."""
        return None if self._writer.healthy else NOT_WRITABLE

    async def request_cancel(self, log: EventLog) -> None:
        """Asks the process that writes a log to cancel its turn."""
        await self.change(lambda database: database.request_cancel(log.id))

    def on_cancel_request(self, callback: Callable[[str], None]) -> None:
        """Sets the callback for ids of responses that are to end."""
        self._logs.cancel_turn = callback

    async def delete_response(self, owner: str, response_id: str) -> bool:
        """Deletes the owner's response. Returns whether it existed."""
        if await self.read_log(owner, response_id) is None:
            return False
        await self._logs.delete(owner, (response_id,)).wait_done()
        return True

    async def delete_completion(self, owner: str, completion_id: str) -> bool:
        """Deletes the owner's chat completion with all its choices. Returns whether it existed."""
        completion = self.find_completion(owner, completion_id)
        if completion is None:
            return False
        await self._logs.delete(owner, completion.choice_ids).wait_done()
        return True

    def find_completion(self, owner: str, completion_id: str) -> StoredCompletion | None:
        """Returns the owner's chat completion with this id, if all its choices have ended."""
        is_deleted = completion_id in self._logs.deleted
        return None if is_deleted else self._database.completions.find_completion(owner, completion_id)

    def list_completions(self, owner: str, query: CompletionsQuery) -> list[StoredCompletion] | None:
        """Returns the owner's chat completions that the query selects: see `CompletionTables`."""
        return self._database.completions.list_completions(owner, query, frozenset(self._logs.deleted))

    def completion_messages(self, owner: str, completion_id: str) -> ChatMessages:
        """Returns the messages that the client sent; none if the chat completion does not exist."""
        return self._database.completions.load_messages(owner, completion_id)

    async def create_conversation(
        self, owner: str, new: StoredConversation, items: Sequence[AnyInput] = (), blobs: BlobContents = NO_BLOBS
    ) -> None:
        """Stores a conversation with its first items. `blobs` has the contents that they refer to."""
        await self.change(lambda database: database.conversations.insert_conversation(owner, new, items, blobs))

    def find_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        """Returns the owner's conversation with this id."""
        return self._database.conversations.find_conversation(owner, conversation_id)

    async def delete_conversation(self, owner: str, conversation_id: str) -> bool:
        """Deletes a conversation and its items. Returns whether it existed."""
        return await self.change(lambda database: database.conversations.delete_conversation(owner, conversation_id))

    async def add_items(
        self, owner: str, conversation_id: str, items: Sequence[AnyInput], blobs: BlobContents = NO_BLOBS
    ) -> bool:
        """Appends items to a conversation, with the contents of their blobs. Returns whether it exists."""
        return await self.change(
            lambda database: database.conversations.add_items(owner, conversation_id, items, blobs)
        )

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Deletes an item of a conversation. Returns whether it existed."""
        return await self.change(lambda database: database.conversations.delete_item(owner, conversation_id, item_id))

    async def use_approvals(self, owner: str, nonces: Sequence[str]) -> bool:
        """Uses approvals, each of which is good once: all or, if one was used before by any server, none of them."""
        now = time.time()
        return await self.change(lambda database: database.use_approvals(owner, nonces, now))

    def release_approvals(self, owner: str, nonces: Sequence[str]) -> StoreChange:
        """Makes approvals good again that were used for nothing: no later than what is written after this call."""
        return self._logs.enqueue_change(lambda database: database.release_approvals(owner, nonces))

    async def read_blob(self, owner: str, sha256: bytes) -> bytes | None:
        """Returns the content of a blob that a response or a conversation of the owner refers to. A thread reads it."""
        for log in self._logs.list_running(owner):
            if (content := log.blobs.get(sha256)) is not None:
                return content
        return await self.read(lambda database: database.blobs.load_blob(owner, sha256))

    async def read_file_bytes(
        self, owner: str, file_id: str, now: float, max_bytes: int, reserve: Callable[[int], None] = lambda _: None
    ) -> tuple[StoredFile, bytes | None] | None:
        """Returns one of the owner's files and its content, which is None above `max_bytes`.

        Returns None for an id that is unknown or malformed, and for a file that is not complete, has expired or was
        deleted, before or while it was read. `reserve` gets the size before the content is read, and may raise.
        """
        stored_id = read_file_id(file_id)
        if stored_id is None:
            return None
        file = await self.read(lambda database: database.files.find_file(owner, stored_id, now))
        if file is None or file.size > max_bytes:
            return None if file is None else (file, None)
        reserve(file.size)
        pieces: list[bytes] = []
        for number in range(-(-file.size // FILE_PIECE_BYTES)):
            piece = await self.read(lambda database, number=number: database.files.read_piece(stored_id, number))  # type: ignore[misc]
            pieces.append(piece or b"")
        content = b"".join(pieces)
        return (file, content) if len(content) == file.size else None

    async def has_blob(self, owner: str, sha256: bytes) -> bool:
        """Tells whether `read_blob` finds a content, without reading it."""
        if any(sha256 in log.blobs for log in self._logs.list_running(owner)):
            return True
        return await self.read(lambda database: database.blobs.find_size(owner, sha256) is not None)

    async def read(self, query: Callable[[Database], T]) -> T:
        """Returns the result of a query, which runs in a thread. Raises `ApiError` 503 if that does not answer."""
        return await read_in_thread(query, self._reader)

    def run_batches(self) -> None:
        """Lets this process take over the batches of servers that are dead."""
        self._writer.runs_batches = True

    async def change(self, apply: Callable[[Database], T]) -> T:
        """Applies a change and returns its result once it is durable. The change continues if the client leaves."""
        result: T = await self._logs.enqueue_change(apply).wait_done()
        return result
