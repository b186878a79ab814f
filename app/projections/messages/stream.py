"""Encodes a response's log as an Anthropic message: as a stream of events, or in one piece."""

from functools import cache

import msgspec

from antiphon.app.errors import from_response
from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.projections.messages.accumulator import MessageAccumulator
from antiphon.app.projections.messages.fold import MessagesFold
from antiphon.app.projections.messages.schema import AnyMessageEvent, MessageEvent
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.events.json_lines import escape_line_separators

_encode_json = msgspec.json.Encoder().encode


class MessagesStream(StreamEncoder):
    """Encoder of a message's stream. It has no last frame of its own: `message_stop` or `error` is the last."""

    def __init__(self, log: EventLog, *, show_thinking: bool = True) -> None:
        self.logs = (log,)
        self._fold = MessagesFold(show_thinking=show_thinking)

    def encode(self, _: int, entries: list[LogEntry]) -> bytes:
        """Returns the frames of events."""
        feed = self._fold.feed_event
        return b"".join([frame_message_event(event) for entry in entries for event in feed(entry.event, entry.detail)])


def frame_message_event(event: AnyMessageEvent) -> bytes:
    """Returns the frame of an event: its type is the frame's event name."""
    return b"%b%b\n\n" % (_frame_header(type(event)), escape_line_separators(_encode_json(event)))


async def final_message(log: EventLog, *, show_thinking: bool = True) -> bytes:
    """Returns the complete message. Raises `ApiError` if the response failed: a message cannot express that."""
    fold, accumulator = MessagesFold(show_thinking=show_thinking), MessageAccumulator()
    async for entries in log.follow_entries():
        for entry in entries:
            for event in fold.feed_event(entry.event, entry.detail):
                accumulator.add_event(event)
    if (error := from_response(fold.terminal)) is not None:
        raise error
    return _encode_json(accumulator.message)


@cache
def _frame_header(kind: type[MessageEvent]) -> bytes:
    """Returns the bytes of a frame before the JSON."""
    return f"event: {kind.__struct_config__.tag}\ndata: ".encode()
