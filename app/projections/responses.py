"""The log as the Responses API tells it: its events as they are, or the response of the last one."""

from collections.abc import Callable, Sequence

import msgspec

from antiphon.app.event_log import Frame, Log
from antiphon.app.projections.obfuscation import padded
from antiphon.events import sse
from antiphon.events.stream import LifecycleEvent


class ResponsesStream:
    """The events from number `start` on, framed; `obfuscated`: what comes in pieces is padded."""

    over = False

    def __init__(self, log: Log, start: int = 0, *, obfuscated: bool = False) -> None:
        self.logs: Sequence[Log] = (log,)
        self.start = start
        self._said = said_of(obfuscated=obfuscated)

    def head(self) -> bytes:
        """Nothing: the first event is the first word."""
        return b""

    def told(self, _: int, frames: list[Frame]) -> bytes:
        """Events as they stand in the log."""
        return b"".join([sse.frame_event(frame.event, self._said(frame)) for frame in frames])

    def end(self) -> bytes:
        """The end mark."""
        return sse.DONE_FRAME


def said_of(*, obfuscated: bool) -> Callable[[Frame], bytes]:
    """What a frame says as JSON, padded where it is a piece of something and lengths are to be hidden."""
    return _hidden if obfuscated else _open


def _open(frame: Frame) -> bytes:
    return frame.data


def _hidden(frame: Frame) -> bytes:
    return padded(frame.data) if hasattr(frame.event, "delta") else frame.data


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
