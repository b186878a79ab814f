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

MOST_AT_ONCE = 256
"""Frames that a reader is given in one list: who reads a long log from its start must not need memory for all of it."""


class Detail(Struct, frozen=True, kw_only=True, gc=False):
    """What no Responses event carries and other faces need. Readers of Responses never see it."""

    tokens: tuple[int, ...] = ()
    """The token ids that the engine gave in the step that caused these events."""
    stop: str | None = None
    """The stop string that ended the turn."""


class Frame(Struct, frozen=True, gc=False):
    """One event, its JSON, and its detail: set on the last event of a step."""

    event: Event
    data: bytes
    detail: Detail | None

    @classmethod
    def of(cls, event: Event, detail: Detail | None = None) -> "Frame":
        """The event, encoded here, once."""
        return cls(event, sse.encode_event(event), detail)


def ends(frames: Sequence[Frame]) -> bool:
    """Whether the last of these frames is its response's last."""
    return bool(frames) and isinstance(frames[-1].event, Terminal)


class Keeper(Protocol):
    """Whoever keeps logs beyond the process."""

    def keep(self, log: "Log", first: int) -> None:
        """Frames from number `first` on were appended; they may be held back (`Log.hold`) until `Log.show`."""
        ...


class Log:
    """What was said about one response so far, and whether that is all."""

    def __init__(self, head: Response, owner: str, given: tuple[AnyInput, ...] = ()) -> None:
        self.id = head.id
        self.owner = owner
        self.head = head
        self.given = given
        """What the client put in with this request, each item with its id."""
        self.frames: list[Frame] = []
        self.ended = False
        self.size = 0
        """Bytes of JSON held."""
        self.readers = 0
        """Clients that are reading it now. A turn that nobody reads any more is cancelled."""
        self.keeper: Keeper | None = None
        """Who is told of every step, from `Store.put` on."""
        self._shown: int | None = None
        self._readings: set[Reading] = set()

    @property
    def conversation(self) -> str:
        """The conversation that the response belongs to, if any."""
        return self.head.conversation.id if isinstance(self.head.conversation, ConversationRef) else ""

    @property
    def shown(self) -> int:
        """How many frames readers may see: all, unless a keeper holds some back until they are safe."""
        return len(self.frames) if self._shown is None else self._shown

    def append(self, events: Sequence[Event], detail: Detail | None = None) -> None:
        """Write down what was said in one step, and wake the readers once."""
        if not events:
            return
        last, first = len(events) - 1, len(self.frames)
        self.add([Frame.of(event, detail if number == last else None) for number, event in enumerate(events)])
        if self.keeper is not None:
            self.keeper.keep(self, first)
        self._wake()

    def add(self, frames: Sequence[Frame]) -> None:
        """Take frames that were encoded before, and tell nobody."""
        if self.ended:
            raise RuntimeError(f"{self.id}: the log has ended")
        for frame in frames:
            if frame.event.sequence_number != len(self.frames):
                raise RuntimeError(f"{self.id}: event {frame.event.sequence_number} at position {len(self.frames)}")
            self.size += len(frame.data)
            self.frames.append(frame)

    def hold(self, count: int) -> None:
        """Show readers no more than the first `count` frames for now."""
        self._shown = count

    def show(self, count: int | None = None) -> None:
        """Show readers so many frames, or all from now on; never fewer than before."""
        before = self.shown
        if self._shown is not None:
            self._shown = None if count is None else max(count, self._shown)
        if self.shown > before:
            self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True
        self._wake()

    @property
    def response(self) -> Response:
        """The response as the latest lifecycle event that is shown told it; before the first one, its head."""
        for frame in reversed(self.frames[: self.shown]):
            if isinstance(frame.event, LifecycleEvent):
                return frame.event.response
        return self.head

    async def settled(self) -> None:
        """Wait until everything that was said up to now is shown."""
        wanted = len(self.frames)
        if self.shown < wanted:
            news = asyncio.Event()
            with self.read(wanted, news.set):
                while self.shown < wanted:
                    news.clear()
                    await news.wait()

    @contextlib.contextmanager
    def read(self, start: int, news: Callable[[], None]) -> "Iterator[Reading]":
        """A reading from number `start` on. `news` is called, soon, when there is more, or when the log has ended."""
        reading = Reading(self, start, news)
        self._readings.add(reading)
        try:
            yield reading
        finally:
            self._readings.discard(reading)
            reading.leave()

    async def follow(self, start: int = 0) -> AsyncGenerator[list[Frame], None]:
        """All frames from number `start` on, in lists as they become available, until the log ends."""
        news = asyncio.Event()
        with self.read(start, news.set) as reading:
            while not reading.done:
                news.clear()
                while frames := reading.take():
                    yield frames
                if not reading.done:
                    await news.wait()

    async def finished(self) -> Response:
        """The response in its terminal state. Waits for it."""
        async for _ in self.follow(self.shown):
            pass
        return self.response

    def _wake(self) -> None:
        for reading in self._readings:
            reading.wake()


class Reading:
    """One reader's way through a log. A step costs it one call from the event loop: no task, no future, no timer."""

    def __init__(self, log: Log, start: int, news: Callable[[], None]) -> None:
        self._log, self._position, self._news = log, start, news
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Handle | None = None

    @property
    def done(self) -> bool:
        """Whether everything was read that will ever be there."""
        return self._log.ended and self._position >= len(self._log.frames)

    @property
    def more(self) -> bool:
        """Whether there are frames to take."""
        return self._position < self._log.shown

    def take(self) -> list[Frame]:
        """The frames that were not taken yet, at most `MOST_AT_ONCE` of them."""
        until = min(self._position + MOST_AT_ONCE, self._log.shown)
        batch = self._log.frames[self._position : until]
        self._position += len(batch)
        return batch

    def wake(self) -> None:
        """There is something to look at: tell the reader, once, when whoever writes has had its say."""
        if self._woken is None:
            self._woken = self._loop.call_soon(self._tell)

    def leave(self) -> None:
        """Tell nothing any more."""
        if self._woken is not None:
            self._woken.cancel()

    def _tell(self) -> None:
        self._woken = None
        self._news()
