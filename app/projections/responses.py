"""The log as the Responses API tells it: its events as they are, or the response of the last one."""

from collections.abc import Sequence

import msgspec

from app.log import Frame, Log
from events import sse
from events.stream import LifecycleEvent


class ResponsesStream:
    """The events from number `start` on, framed."""

    over = False

    def __init__(self, log: Log, start: int = 0) -> None:
        self.logs: Sequence[Log] = (log,)
        self.start = start

    def head(self) -> bytes:
        """Nothing: the first event is the first word."""
        return b""

    def told(self, _: int, frames: list[Frame]) -> bytes:
        """Events as they stand in the log."""
        return b"".join([sse.frame(frame.event, frame.data) for frame in frames])

    def end(self) -> bytes:
        """The end mark."""
        return sse.DONE


async def final(log: Log) -> bytes:
    """The response in its terminal state: the one in the stream's last event."""
    return msgspec.json.encode(await log.finished())


def opened(log: Log) -> bytes:
    """The response as it was when it was opened, however far it has come since: in the background, it was queued."""
    first = [frame.event.response for frame in log.frames[:2] if isinstance(frame.event, LifecycleEvent)]
    return msgspec.json.encode(first[-1])


def snapshot(log: Log) -> bytes:
    """The response as it is now."""
    return msgspec.json.encode(log.response)
