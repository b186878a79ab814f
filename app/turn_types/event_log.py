"""The event log: one per response, with one writer and many readers.

Every reply of this server (streamed or not, live or replayed, for each supported API) is a reading of this log. An
event is encoded once, here; its index is its sequence number. A reader never blocks the writer: it has its own
position, and it is woken once for all events that are appended before it reads again.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from antiphon.app.turn_types.blob_urls import NO_BLOBS, BlobContents
from antiphon.app.turn_types.continuation import Continuation, RecordRow
from antiphon.app.turn_types.step_detail import TokenDetail
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.events import sse
from antiphon.events.base import Event
from antiphon.events.hosted_events import ToolRunBegun
from antiphon.events.inputs import AnyInput
from antiphon.events.response import ConversationRef, Response
from antiphon.events.stream import ItemAdded, ItemDone, LifecycleEvent, Terminal

MAX_ENTRIES_PER_READ = 256
"""Maximum entries in one list, so that reading a long log from its start does not need memory for all of it."""
T = TypeVar("T")
_journal_encoder = msgspec.msgpack.Encoder()


class LogDivergedError(Exception):
    """A reader has taken entries in whose place another process has stored others. Only its client can begin again."""


async def repeat_if_diverged(fold: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of reading logs to their ends. Reads them again if the store has other entries."""
    while True:
        with contextlib.suppress(LogDivergedError):
            return await fold()


class LogEntry(Struct, frozen=True, gc=False):
    """One event, its JSON encoding, and its detail and journal, which are set on the last event of a step."""

    event: Event
    data: bytes
    detail: TokenDetail | None
    journal: bytes | Sequence[Struct] = b""
    """The inputs of the turn that gave the step, or their encoding: see `app.turns.continuation.journal`."""

    @classmethod
    def from_event(
        cls, event: Event, detail: TokenDetail | None = None, journal: bytes | Sequence[Struct] = b""
    ) -> "LogEntry":
        """Creates an entry; encodes the event."""
        return cls(event, sse.encode_event(event), detail, journal)

    def encode_journal(self) -> bytes:
        """Returns the encoded journal; empty if there is none. Any thread may call it."""
        journal = self.journal
        if isinstance(journal, bytes):
            return journal
        return _journal_encoder.encode(journal) if journal else b""


def is_terminal(entries: Sequence[LogEntry]) -> bool:
    """Tells whether the last of these entries holds the terminal event of its response."""
    return bool(entries) and isinstance(entries[-1].event, Terminal)


def begins_tool_run(entries: Sequence[LogEntry]) -> bool:
    """Tells whether one of these entries says that the server is about to run a tool."""
    return any(isinstance(entry.event, ToolRunBegun) for entry in entries)


def has_output(entries: Sequence[LogEntry]) -> bool:
    """Tells whether one of these entries has output of the turn. A stage that is repeated has none."""
    events = [entry.event for entry in entries]
    return any(isinstance(event, ItemAdded | ItemDone) or hasattr(event, "delta") for event in events)


class EventLog:
    """The events of one response so far, and whether the log has ended."""

    cancel_requested = False
    """True if the cancellation was requested before this process has claimed the response."""
    was_read = False
    """True once a client has read the log here, or if another process began it."""

    def __init__(
        self,
        base_response: Response,
        owner: str,
        input_items: tuple[AnyInput, ...] = (),
        *,
        keeps_details: bool = False,
        blobs: BlobContents = NO_BLOBS,
        continuation: Continuation | None = None,
    ) -> None:
        self.id = base_response.id
        self.owner = owner
        self.base_response = base_response
        self.input_items = input_items
        """Input items of this request, each with its id."""
        self.blobs = blobs
        """Contents of blobs that the input refers to, until a store has written them."""
        self.continuation = continuation
        """Data with which another process can continue; None if none can."""
        self.keeps_details = keeps_details
        """True if a store also keeps the details, because a later reading of the log needs them."""
        self.stats: TurnStats | None = None
        """Figures of the turn, if it runs or ran in this process."""
        self.pack_record: Callable[[], RecordRow | None] | None = None
        """Returns the record that a store writes with the last step; any thread may call it. None: it writes none."""
        self.entries: list[LogEntry] = []
        self.ended = False
        self.size = 0
        """Size of the encoded events in bytes."""
        self.readers = 0
        """Number of clients that read the log now."""
        self.is_read_elsewhere = False  # true once a client reads it at another server
        self.on_append: Callable[[EventLog, int], None] | None = None
        """Receives the log and the index of its first new entry, for every step after `ResponseStore.add_log`.

        It may call `withhold`, and `publish` later.
        """
        self._published_limit: int | None = None
        self.open_readers: set[LogReader] = set()
        """Readers that wait for entries or take them. Only the log changes the set."""
        self._num_kept: float = 0
        """Number of entries that the store keeps, from the first one on."""
        self._is_given_up = False  # true once the store writes no more entries
        self.is_lost = False
        """True once another process writes this log, or has deleted it."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the log is lost, for a request that waits for its end."""
        self._unconfirmed: list[LogEntry] = []
        """Entries of a lost log that this process has not stored and whose places in the store have not been read."""
        self._kept_signals: set[asyncio.Event] = set()

    @property
    def conversation_id(self) -> str:
        """Id of the conversation that the response belongs to; empty if there is none."""
        return (
            self.base_response.conversation.id if isinstance(self.base_response.conversation, ConversationRef) else ""
        )

    @property
    def published(self) -> int:
        """Number of entries that readers may see: all, unless a store withholds some until they are persisted."""
        return len(self.entries) if self._published_limit is None else self._published_limit

    def append_step(
        self, events: Sequence[Event], detail: TokenDetail | None = None, journal: bytes | Sequence[Struct] = b""
    ) -> None:
        """Appends the events of one step and wakes the readers once. Drops them if the log is lost."""
        if not events or self.is_lost:
            return
        first = len(self.entries)
        entries = [LogEntry.from_event(event) for event in events[:-1]]
        self.add_stored([*entries, LogEntry.from_event(events[-1], detail, journal)])
        if self.on_append is not None:
            self.on_append(self, first)
        self._wake_readers()

    def add_stored(self, entries: Sequence[LogEntry]) -> None:
        """Appends encoded entries without notifying the store or the readers."""
        if self.ended:
            raise RuntimeError(f"{self.id}: the log has ended")
        for entry in entries:
            if entry.event.sequence_number != len(self.entries):
                raise RuntimeError(f"{self.id}: event {entry.event.sequence_number} at position {len(self.entries)}")
            self.size += len(entry.data)
            self.entries.append(entry)

    def append_stored(self, entries: Sequence[LogEntry]) -> None:
        """Appends encoded entries that another process has stored, and wakes the readers once."""
        own, self._unconfirmed = self._unconfirmed[: len(entries)], self._unconfirmed[len(entries) :]
        for number, (mine, stored) in enumerate(zip(own, entries, strict=False), len(self.entries)):
            if mine.data != stored.data:
                self._unconfirmed = []
                self._break_off_readers(number)
                break
        self.add_stored(entries)
        self._wake_readers()

    def lose_writer(self) -> None:
        """Makes the log one that another process writes: a turn of this one can append nothing more, nor end the log.

        What the store has not committed is set aside until it is known what is stored in its place. The log is open
        again if it had ended, and all that the store has is published.
        """
        num_kept = int(min(self._num_kept, len(self.entries)))
        self.is_lost, self.ended, self.on_append, self._published_limit = True, False, None, None
        self.entries, self._unconfirmed = self.entries[:num_kept], self.entries[num_kept:]
        self.size -= sum(len(entry.data) for entry in self._unconfirmed)
        self.mark_given_up()
        self._wake_readers()
        self.on_lost()

    def restore_unconfirmed(self) -> None:
        """Appends what was set aside: the store has nothing in its place, because the log was deleted."""
        entries, self._unconfirmed = self._unconfirmed, []
        self.add_stored(entries)

    def _break_off_readers(self, number: int) -> None:
        """Breaks off the readers that have taken the entry `number`, in whose place the store has another or none."""
        for reader in self.open_readers:
            reader.break_off(number)

    def withhold(self, count: int) -> None:
        """Limits readers to the first `count` entries until `publish` is called."""
        self._published_limit = count

    def publish(self, count: int | None = None) -> None:
        """Shows readers the first `count` entries, or all from now on if None; never fewer than before."""
        previous = self.published
        if self._published_limit is not None:
            self._published_limit = None if count is None else max(count, self._published_limit)
        if self.published > previous:
            self._wake_readers()

    def end_log(self) -> None:
        """Marks the log as complete and wakes the readers. Does nothing if the log is lost: others write it."""
        if not self.is_lost:
            self.end_stored()

    def end_stored(self) -> None:
        """Marks a log that another process wrote as complete, and wakes the readers."""
        self.ended = True
        self._wake_readers()

    @property
    def response(self) -> Response:
        """Response in the latest published lifecycle event; `base_response` before the first one."""
        for entry in reversed(self.entries[: self.published]):
            if isinstance(entry.event, LifecycleEvent):
                return entry.event.response
        return self.base_response

    async def wait_published(self) -> None:
        """Waits until all entries that exist now are published, or the log is lost."""
        target = len(self.entries)
        await self._wait_until(lambda: self.published >= target or self.is_lost)

    def mark_kept(self, count: float) -> None:
        """Records that the store has committed the first `count` entries; infinite if it keeps all in memory."""
        self._num_kept = max(self._num_kept, count)
        self._signal_kept()

    def mark_given_up(self) -> None:
        """Records that the store writes no more entries: a write failed, or the log was deleted or taken over."""
        self._is_given_up = True
        self._signal_kept()

    async def wait_kept(self) -> bool:
        """Waits until the store has committed all entries that exist now. Returns False once it has given up the log.

        Publication does not tell: a store also publishes what it cannot write. A log without its store waits for
        `ResponseStore.add_log`, and in an outage for the end of it, so the caller limits the time. If the response
        is not to be stored, there is nothing to wait for.
        """
        if not self.base_response.store:
            return True
        target, signal = len(self.entries), asyncio.Event()
        self._kept_signals.add(signal)
        try:
            while not self._is_given_up and self._num_kept < target:
                signal.clear()
                await signal.wait()
        finally:
            self._kept_signals.discard(signal)
        return not self._is_given_up

    def _signal_kept(self) -> None:
        for signal in self._kept_signals:
            signal.set()

    @contextlib.contextmanager
    def open_reader(self, start: int, on_news: Callable[[], None]) -> "Iterator[LogReader]":
        """Opens a reader at index `start`. The event loop calls `on_news` if entries are published or the log ends."""
        reader = LogReader(self, start, on_news)
        self.open_readers.add(reader)
        try:
            yield reader
        finally:
            self.open_readers.discard(reader)
            reader.detach()

    async def follow_entries(self, start: int = 0) -> AsyncGenerator[list[LogEntry], None]:
        """Yields the entries from index `start` on, in lists, as they are published, until the log ends.

        Raises `LogDivergedError` if the store has others in the place of some that it has yielded.
        """
        woken = asyncio.Event()
        with self.open_reader(start, woken.set) as reader:
            while not reader.at_end:
                woken.clear()
                while entries := reader.take_entries():
                    yield entries
                if not reader.at_end:
                    await woken.wait()

    async def wait_finished(self) -> Response:
        """Waits until the log ends and returns the response in its terminal state."""
        await self._wait_until(lambda: self.ended and self.published >= len(self.entries))
        return self.response

    async def _wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Waits until a condition holds, which is looked at when entries are published or the log ends."""
        woken = asyncio.Event()
        with self.open_reader(len(self.entries), woken.set):
            while not is_reached():
                woken.clear()
                await woken.wait()

    def _wake_readers(self) -> None:
        for reader in self.open_readers:
            reader.notify()


class LogReader:
    """Position of one reader in a log. A step costs it one event-loop callback: no task, no future, no timer."""

    def __init__(self, log: EventLog, start: int, news: Callable[[], None]) -> None:
        self._log, self._start, self._position, self._news = log, start, start, news
        self._is_broken_off = False
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Handle | None = None

    @property
    def at_end(self) -> bool:
        """True if the log has ended and every entry was taken."""
        return not self._is_broken_off and self._log.ended and self._position >= len(self._log.entries)

    @property
    def has_entries(self) -> bool:
        """True if there are published entries to take, or `take_entries` raises."""
        return self._is_broken_off or self._position < self._log.published

    def take_entries(self) -> list[LogEntry]:
        """Returns the next published entries, at most `MAX_ENTRIES_PER_READ`, and advances past them.

        Raises `LogDivergedError` if the store has others in the place of some that were taken.
        """
        if self._is_broken_off:
            raise LogDivergedError
        stop = min(self._position + MAX_ENTRIES_PER_READ, self._log.published)
        batch = self._log.entries[self._position : stop]
        self._position += len(batch)
        return batch

    def break_off(self, number: int) -> None:
        """Makes `take_entries` raise if the entry with this number was taken."""
        self._is_broken_off = self._is_broken_off or self._start <= number < self._position

    def notify(self) -> None:
        """Schedules one call of the reader's callback, which runs after the writer's current callback returns."""
        if self._woken is None:
            self._woken = self._loop.call_soon(self._call_back)

    def detach(self) -> None:
        """Cancels a scheduled call."""
        if self._woken is not None:
            self._woken.cancel()

    def _call_back(self) -> None:
        self._woken = None
        self._news()
