"""The event log: one per response, one writer, many readers.

Every reply of this server, streamed or not, live or replayed, in whatever dialect of the wire, is a reading of this
log. An event is encoded here, once; its index is its sequence number. A reader never holds the writer up: it has a
position of its own and is woken once, however many events came before it looked again.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.events import sse
from antiphon.events.base import Event
from antiphon.events.inputs import AnyInput
from antiphon.events.response import ConversationRef, Response
from antiphon.events.stream import LifecycleEvent, Terminal

MAX_ENTRIES_PER_READ = 256
"""Frames that a reader is given in one list: who reads a long log from its start must not need memory for all of it."""


class EntryDetail(Struct, frozen=True, kw_only=True, gc=False):
    """What no Responses event carries and other faces need. Readers of Responses never see it."""

    tokens: tuple[int, ...] = ()
    """The token ids that the engine gave in the step that caused these events."""
    stop_string: str | None = None
    """The stop string that ended the turn."""


class LogEntry(Struct, frozen=True, gc=False):
    """One event, its JSON, and its detail: set on the last event of a step."""

    event: Event
    data: bytes
    detail: EntryDetail | None

    @classmethod
    def from_event(cls, event: Event, detail: EntryDetail | None = None) -> "LogEntry":
        """The event, encoded here, once."""
        return cls(event, sse.encode_event(event), detail)


def is_terminal(frames: Sequence[LogEntry]) -> bool:
    """Whether the last of these frames is its response's last."""
    return bool(frames) and isinstance(frames[-1].event, Terminal)


class LogListener(Protocol):
    """Whoever keeps logs beyond the process."""

    def on_append(self, log: "EventLog", first: int) -> None:
        """Frames from number `first` on were appended; they may be held back (`Log.hold`) until `Log.show`."""
        ...


class EventLog:
    """What was said about one response so far, and whether that is all."""

    def __init__(self, base_response: Response, owner: str, input_items: tuple[AnyInput, ...] = ()) -> None:
        self.id = base_response.id
        self.owner = owner
        self.base_response = base_response
        self.input_items = input_items
        """What the client put in with this request, each item with its id."""
        self.entries: list[LogEntry] = []
        self.ended = False
        self.size = 0
        """Bytes of JSON held."""
        self.readers = 0
        """Clients that are reading it now. A turn that nobody reads any more is cancelled."""
        self.listener: LogListener | None = None
        """Who is told of every step, from `Store.put` on."""
        self._shown: int | None = None
        self._readings: set[LogReader] = set()

    @property
    def conversation_id(self) -> str:
        """The conversation that the response belongs to, if any."""
        return (
            self.base_response.conversation.id if isinstance(self.base_response.conversation, ConversationRef) else ""
        )

    @property
    def published(self) -> int:
        """How many frames readers may see: all, unless a keeper holds some back until they are safe."""
        return len(self.entries) if self._shown is None else self._shown

    def append_step(self, events: Sequence[Event], detail: EntryDetail | None = None) -> None:
        """Write down what was said in one step, and wake the readers once."""
        if not events:
            return
        last, first = len(events) - 1, len(self.entries)
        self.add_stored(
            [LogEntry.from_event(event, detail if number == last else None) for number, event in enumerate(events)]
        )
        if self.listener is not None:
            self.listener.on_append(self, first)
        self._wake_readers()

    def add_stored(self, frames: Sequence[LogEntry]) -> None:
        """Take frames that were encoded before, and tell nobody."""
        if self.ended:
            raise RuntimeError(f"{self.id}: the log has ended")
        for frame in frames:
            if frame.event.sequence_number != len(self.entries):
                raise RuntimeError(f"{self.id}: event {frame.event.sequence_number} at position {len(self.entries)}")
            self.size += len(frame.data)
            self.entries.append(frame)

    def withhold(self, count: int) -> None:
        """Show readers no more than the first `count` frames for now."""
        self._shown = count

    def publish(self, count: int | None = None) -> None:
        """Show readers so many frames, or all from now on; never fewer than before."""
        before = self.published
        if self._shown is not None:
            self._shown = None if count is None else max(count, self._shown)
        if self.published > before:
            self._wake_readers()

    def end_log(self) -> None:
        """Nothing more will come."""
        self.ended = True
        self._wake_readers()

    @property
    def response(self) -> Response:
        """The response as the latest lifecycle event that is shown told it; before the first one, its head."""
        for frame in reversed(self.entries[: self.published]):
            if isinstance(frame.event, LifecycleEvent):
                return frame.event.response
        return self.base_response

    async def wait_published(self) -> None:
        """Wait until everything that was said up to now is shown."""
        wanted = len(self.entries)
        if self.published < wanted:
            news = asyncio.Event()
            with self.open_reader(wanted, news.set):
                while self.published < wanted:
                    news.clear()
                    await news.wait()

    @contextlib.contextmanager
    def open_reader(self, start: int, on_news: Callable[[], None]) -> "Iterator[LogReader]":
        """A reading from number `start` on. `news` is called, soon, when there is more, or when the log has ended."""
        reading = LogReader(self, start, on_news)
        self._readings.add(reading)
        try:
            yield reading
        finally:
            self._readings.discard(reading)
            reading.detach()

    async def follow_entries(self, start: int = 0) -> AsyncGenerator[list[LogEntry], None]:
        """All frames from number `start` on, in lists as they become available, until the log ends."""
        news = asyncio.Event()
        with self.open_reader(start, news.set) as reading:
            while not reading.at_end:
                news.clear()
                while frames := reading.take_entries():
                    yield frames
                if not reading.at_end:
                    await news.wait()

    async def wait_finished(self) -> Response:
        """The response in its terminal state. Waits for it."""
        async for _ in self.follow_entries(self.published):
            pass
        return self.response

    def _wake_readers(self) -> None:
        for reading in self._readings:
            reading.notify()


class LogReader:
    """One reader's way through a log. A step costs it one call from the event loop: no task, no future, no timer."""

    def __init__(self, log: EventLog, start: int, news: Callable[[], None]) -> None:
        self._log, self._position, self._news = log, start, news
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Handle | None = None

    @property
    def at_end(self) -> bool:
        """Whether everything was read that will ever be there."""
        return self._log.ended and self._position >= len(self._log.entries)

    @property
    def has_entries(self) -> bool:
        """Whether there are frames to take."""
        return self._position < self._log.published

    def take_entries(self) -> list[LogEntry]:
        """The frames that were not taken yet, at most `MOST_AT_ONCE` of them."""
        until = min(self._position + MAX_ENTRIES_PER_READ, self._log.published)
        batch = self._log.entries[self._position : until]
        self._position += len(batch)
        return batch

    def notify(self) -> None:
        """There is something to look at: tell the reader, once, when whoever writes has had its say."""
        if self._woken is None:
            self._woken = self._loop.call_soon(self._call_back)

    def detach(self) -> None:
        """Tell nothing any more."""
        if self._woken is not None:
            self._woken.cancel()

    def _call_back(self) -> None:
        self._woken = None
        self._news()
