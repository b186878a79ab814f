"""The event log: one per response, one writer, many readers.

Every reply of this server, streamed or not, live or replayed, in whatever dialect of the wire, is a reading of this
log. An event is encoded here, once; its index is its sequence number. A reader never holds the writer up: it has a
position of its own and is woken once, however many events came before it looked again.
"""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from events import sse
from events.base import Event
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

    def __init__(self, head: Response, owner: str) -> None:
        self.id = head.id
        self.owner = owner
        self.head = head
        self.frames: list[Frame] = []
        self.ended = False
        self.size = 0
        """Bytes of JSON held."""
        self.readers = 0
        """Clients that are reading it now. A turn that nobody reads any more is cancelled."""
        self._waiting: set[Reading] = set()

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

    def follow(self, start: int = 0, *, idle: float | None = None) -> "Reading":
        """All frames from number `start` on, in lists as they become available, until the log ends.

        After `idle` seconds without any, an empty list.
        """
        return Reading(self, start, idle)

    async def finished(self) -> Response:
        """The response in its terminal state. Waits for it."""
        async for _ in self.follow(len(self.frames)):
            pass
        return self.response

    def await_news(self, reading: "Reading") -> None:
        """Wake this reading once when there is more, or when the log has ended."""
        self._waiting.add(reading)

    def _wake(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, set()
            for reading in waiting:
                reading.wake()


class Reading:
    """One reader's way through a log: an iterator over lists of frames.

    A wake-up costs one future and no timer: silence is watched by a timer that is set once and looks when it was last
    broken, so a reader of many small steps does not set and cancel one for each.
    """

    def __init__(self, log: Log, start: int, idle: float | None) -> None:
        self._log, self._position, self._idle = log, start, idle
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Future[bool] | None = None
        self._waits_since = 0.0
        self._watch: asyncio.TimerHandle | None = None

    def __aiter__(self) -> "Reading":
        return self

    async def __anext__(self) -> list[Frame]:
        frames = self._log.frames
        while self._position >= len(frames):
            if self._log.ended:
                raise StopAsyncIteration
            if not await self._wait():
                return []
        batch = frames[self._position : self._position + MOST_AT_ONCE]
        self._position += len(batch)
        return batch

    def wake(self) -> None:
        """There is more to read, or nothing more will come."""
        self._tell(news=True)

    def _wait(self) -> asyncio.Future[bool]:
        """Done when there is news (True), or when it was silent for too long (False)."""
        self._news = self._loop.create_future()
        self._log.await_news(self)
        if self._idle is not None:
            self._waits_since = self._loop.time()
            if self._watch is None:
                self._watch = self._loop.call_later(self._idle, self._look, self._idle)
        return self._news

    def _look(self, idle: float) -> None:
        """Tell of silence that has lasted; otherwise look again when it will have."""
        self._watch = None
        if self._news is None or self._news.done():
            return  # it is not waiting, or has left; the next wait sets the watch anew
        left = self._waits_since + idle - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look, idle)
        else:
            self._tell(news=False)

    def _tell(self, *, news: bool) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(news)
