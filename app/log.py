"""The event log: one per response, one writer, many readers.

Every reply of this server, streamed or not, live or replayed, in whatever dialect of the wire, is a reading of this
log. An event is encoded here, once; its index is its sequence number. A reader never holds the writer up: it has a
position of its own and is woken once per append, however many events that brought.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from events import sse
from events.base import Event
from events.response import Response
from events.stream import LifecycleEvent


class Detail(Struct, frozen=True, kw_only=True):
    """What no Responses event carries and other faces need. Readers of Responses never see it."""

    tokens: tuple[int, ...] = ()
    """The token ids that the engine gave in the step that caused these events."""
    stop: str | None = None
    """The stop string that ended the turn."""


class Frame(NamedTuple):
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
        self._news = asyncio.Event()

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

    async def follow(self, start: int = 0, *, idle: float | None = None) -> AsyncIterator[list[Frame]]:
        """All frames from number `start` on, in lists as they become available, until the log ends.

        After `idle` seconds without any, an empty list.
        """
        position = start
        while True:
            if position < len(self.frames):
                batch = self.frames[position:]
                position += len(batch)
                yield batch
            elif self.ended:
                return
            elif not await self._news_within(idle):
                yield []

    async def finished(self) -> Response:
        """The response in its terminal state. Waits for it."""
        async for _ in self.follow(len(self.frames)):
            pass
        return self.response

    async def _news_within(self, seconds: float | None) -> bool:
        news = self._news
        try:
            async with asyncio.timeout(seconds):
                await news.wait()
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
