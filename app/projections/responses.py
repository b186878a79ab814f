"""The log as the Responses API tells it: its events as they are, or the response of the last one."""

from collections.abc import Callable, Sequence

import msgspec

from antiphon.app.event_log import EventLog, LogEntry
from antiphon.app.projections.obfuscation import add_obfuscation
from antiphon.events import sse
from antiphon.events.stream import LifecycleEvent


class ResponsesStream:
    """The events from number `start` on, framed; `obfuscated`: what comes in pieces is padded."""

    finished = False

    def __init__(self, log: EventLog, start: int = 0, *, obfuscated: bool = False) -> None:
        self.logs: Sequence[EventLog] = (log,)
        self.start = start
        self._said = event_encoder(obfuscated=obfuscated)

    def initial(self) -> bytes:
        """Nothing: the first event is the first word."""
        return b""

    def encode(self, _: int, frames: list[LogEntry]) -> bytes:
        """Events as they stand in the log."""
        return b"".join([sse.frame_event(frame.event, self._said(frame)) for frame in frames])

    def final(self) -> bytes:
        """The end mark."""
        return sse.DONE_FRAME


def event_encoder(*, obfuscated: bool) -> Callable[[LogEntry], bytes]:
    """What a frame says as JSON, padded where it is a piece of something and lengths are to be hidden."""
    return _encode_obfuscated if obfuscated else _encode_plain


def _encode_plain(frame: LogEntry) -> bytes:
    return frame.data


def _encode_obfuscated(frame: LogEntry) -> bytes:
    return add_obfuscation(frame.data) if hasattr(frame.event, "delta") else frame.data


async def final_response(log: EventLog) -> bytes:
    """The response in its terminal state: the one in the stream's last event."""
    return msgspec.json.encode(await log.wait_finished())


def initial_response(log: EventLog) -> bytes:
    """The response as it was when it was opened, however far it has come since: in the background, it was queued."""
    first = [frame.event.response for frame in log.entries[:2] if isinstance(frame.event, LifecycleEvent)]
    return msgspec.json.encode(first[-1])


def current_response(log: EventLog) -> bytes:
    """The response as it is now."""
    return msgspec.json.encode(log.response)
