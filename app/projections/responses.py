"""Projection of the event log to the Responses API: its events unchanged, or the response in the last one."""

import msgspec

from antiphon.app.base.event_log import EventLog, LogEntry
from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.projections.obfuscation import add_obfuscation
from antiphon.events import sse
from antiphon.events.response import Response
from antiphon.events.stream import LifecycleEvent


class ResponsesStream(StreamEncoder):
    """Encoder of the events from number `start` on as SSE frames. If `obfuscated`, deltas are padded."""

    def __init__(self, log: EventLog, start: int = 0, *, obfuscated: bool = False) -> None:
        self.logs, self.start, self._obfuscated = (log,), start, obfuscated

    def encode(self, _: int, entries: list[LogEntry]) -> bytes:
        """Returns the frames of events, with their JSON as in the log or padded."""
        return b"".join([sse.frame_event(each.event, encode_entry(each, self._obfuscated)) for each in entries])

    def final(self) -> bytes:
        """Returns the `[DONE]` frame."""
        return sse.DONE_FRAME


def encode_entry(entry: LogEntry, obfuscated: bool) -> bytes:
    """Returns the JSON of an event. If `obfuscated`, that of a delta is padded."""
    return add_obfuscation(entry.data) if obfuscated and hasattr(entry.event, "delta") else entry.data


async def final_response(log: EventLog) -> bytes:
    """Waits for the response to end. Returns it in its terminal state, as in the last event of the stream."""
    return msgspec.json.encode(await log.wait_finished())


def initial_response(log: EventLog) -> Response:
    """Returns the response as of its first two events: queued if it runs in the background, even if it has ended."""
    return [entry.event.response for entry in log.entries[:2] if isinstance(entry.event, LifecycleEvent)][-1]
