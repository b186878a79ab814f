"""The event log: one per response, one writer, many readers.

Every reply of this server, streamed or not, live or replayed, in whatever dialect of the wire, is a reading of this
log. An event is encoded here, once; its index is its sequence number. A reader never holds the writer up: it has a
position of its own and is woken once, however many events came before it looked again.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

from msgspec import Struct

from events import sse
from events.base import Event
from events.inputs import AnyInput
from events.response import Response
from events.stream import LifecycleEvent

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
        self._readings: set[Reading] = set()

    def append(self, events: Sequence[Event], detail: Detail | None = None) -> None:
        """Write down what was said in one step, and wake the readers once."""
        if not events:
            return
        if self.ended:
            raise RuntimeError(f"{self.id}: the log has ended")
        last = len(events) - 1
        for number, event in enumerate(events):
            if event.sequence_number != len(self.frames):
                raise RuntimeError(f"{self.id}: event {event.sequence_number} at position {len(self.frames)}")
            data = sse.encode(event)
            self.size += len(data)
            self.frames.append(Frame(event, data, detail if number == last else None))
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True
        self._wake()

    @property
    def response(self) -> Response:
        """The response as the latest lifecycle event told it; before the first event, its head."""
        for frame in reversed(self.frames):
            if isinstance(frame.event, LifecycleEvent):
                return frame.event.response
        return self.head

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
        async for _ in self.follow(len(self.frames)):
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

    def take(self) -> list[Frame]:
        """The frames that were not taken yet, at most `MOST_AT_ONCE` of them."""
        batch = self._log.frames[self._position : self._position + MOST_AT_ONCE]
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
