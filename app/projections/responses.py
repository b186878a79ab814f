"""Projection of the event log to the Responses API: its events unchanged, or the response in the last one."""

from collections.abc import Callable, Sequence

import msgspec

from antiphon.app.base.event_log import EventLog, LogEntry
from antiphon.app.projections.obfuscation import add_obfuscation
from antiphon.events import sse
from antiphon.events.stream import LifecycleEvent


class ResponsesStream:
    """Encoder of the events from number `start` on as SSE frames. If `obfuscated`, deltas are padded."""

    finished = False

    def __init__(self, log: EventLog, start: int = 0, *, obfuscated: bool = False) -> None:
        self.logs: Sequence[EventLog] = (log,)
        self.start = start
        self._encode_entry = event_encoder(obfuscated=obfuscated)

    def initial(self) -> bytes:
        """Returns no bytes: the stream starts with the first event."""
        return b""

    def encode(self, _: int, entries: list[LogEntry]) -> bytes:
        """Returns the frames of events, with their JSON as in the log or padded."""
        return b"".join([sse.frame_event(frame.event, self._encode_entry(frame)) for frame in entries])

    def final(self) -> bytes:
        """Returns the `[DONE]` frame."""
        return sse.DONE_FRAME


def event_encoder(*, obfuscated: bool) -> Callable[[LogEntry], bytes]:
    """Returns a function from a log entry to its JSON. If `obfuscated`, it pads deltas."""
    return _encode_obfuscated if obfuscated else _encode_plain


def _encode_plain(frame: LogEntry) -> bytes:
    return frame.data


def _encode_obfuscated(frame: LogEntry) -> bytes:
    return add_obfuscation(frame.data) if hasattr(frame.event, "delta") else frame.data


async def final_response(log: EventLog) -> bytes:
    """Waits for the response to end. Returns it in its terminal state, as in the last event of the stream."""
    return msgspec.json.encode(await log.wait_finished())


def initial_response(log: EventLog) -> bytes:
    """Returns the response as of its first two events: queued if it runs in the background, even if it has ended."""
    snapshots = [frame.event.response for frame in log.entries[:2] if isinstance(frame.event, LifecycleEvent)]
    return msgspec.json.encode(snapshots[-1])


def current_response(log: EventLog) -> bytes:
    """Returns the response in its current state."""
    return msgspec.json.encode(log.response)
