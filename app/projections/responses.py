"""Projection of the event log to the Responses API: its events, or the response in the last one.

Both are without what tools returned, unless `include` names it: see `included_outputs`.
"""

import msgspec

from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.projections.included_outputs import encode_shown, shown_response
from antiphon.app.projections.obfuscation import add_obfuscation
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.app.turn_types.reply_form import ResponsesForm
from antiphon.events import sse
from antiphon.events.response import Response
from antiphon.events.stream import LifecycleEvent


class ResponsesStream(StreamEncoder):
    """Encoder of the events from number `start` on as SSE frames, in this form."""

    def __init__(self, log: EventLog, start: int = 0, form: ResponsesForm = ResponsesForm()) -> None:  # noqa: B008  # it is frozen
        self.logs, self.start, self._form = (log,), start, form

    def encode(self, _: int, entries: list[LogEntry]) -> bytes:
        """Returns the frames of events."""
        return b"".join([sse.frame_event(each.event, encode_entry(each, self._form)) for each in entries])

    def final(self) -> bytes:
        """Returns the `[DONE]` frame."""
        return sse.DONE_FRAME


def encode_entry(entry: LogEntry, form: ResponsesForm) -> bytes:
    """Returns the JSON of an event as in the log, with a delta padded and outputs left out if the form says so."""
    if hasattr(entry.event, "delta"):
        return add_obfuscation(entry.data) if form.obfuscate else entry.data
    return encode_shown(entry, form.include)


async def final_response(log: EventLog, include: frozenset[str] = frozenset()) -> bytes:
    """Waits for the response to end. Returns it in its terminal state, as in the last event of the stream."""
    return msgspec.json.encode(shown_response(await log.wait_finished(), include))


def initial_response(log: EventLog) -> Response:
    """Returns the response as of its first two events: queued if it runs in the background, even if it has ended."""
    return [entry.event.response for entry in log.entries[:2] if isinstance(entry.event, LifecycleEvent)][-1]
