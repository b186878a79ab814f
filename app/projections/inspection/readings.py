"""Readings of a turn: the stream that each API would have sent, by the projections that it has."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.projections.chat.stream import ChatStream
from antiphon.app.projections.completions.stream import CompletionStream
from antiphon.app.projections.included_outputs import TOOL_OUTPUTS
from antiphon.app.projections.messages.stream import MessagesStream
from antiphon.app.projections.responses import ResponsesStream
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.reply_form import ChatForm, CompletionForm, ResponsesForm
from antiphon.events.json_lines import encode_json_line

ReadingApi = Literal["responses", "chat", "messages", "completions"]


def create_encoder(log: EventLog, api: ReadingApi) -> StreamEncoder:
    """Returns the encoder of the log as a stream of this API, with all that is optional: usage, outputs of tools."""
    if api == "chat":
        return ChatStream((log,), ChatForm(stream=True, include_usage=True))
    if api == "messages":
        return MessagesStream(log)
    if api == "completions":
        return CompletionStream((log,), CompletionForm(stream=True, include_usage=True))
    return ResponsesStream(log, form=ResponsesForm(stream=True, include=TOOL_OUTPUTS))


def encode_reading(log: EventLog, api: ReadingApi) -> bytes:
    """Returns the reading as JSON lines: `{"n": last event that was read, "data": what the API would have sent}`.

    `data` is a frame's data; -1 as `n` marks what precedes the first event. A name of an event is in `name`.
    """
    encoder = create_encoder(log, api)
    lines = [*_list_frames(-1, encoder.initial())]
    for number, entry in enumerate(log.entries):
        lines += _list_frames(number, encoder.encode(0, [entry]))
        if encoder.failure is not None:
            break
    if log.ended:
        lines += _list_frames(len(log.entries) - 1, encoder.final())
    return b"".join(lines)


def _list_frames(number: int, stream: bytes) -> Iterator[bytes]:
    """Yields a line for each frame of a stream of server-sent events."""
    for frame in stream.split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in frame.split(b"\n") if b": " in line)
        if b"data" not in fields:
            continue
        line = {"n": number, **({"name": fields[b"event"].decode()} if b"event" in fields else {})}
        data = fields[b"data"]
        yield encode_json_line(line | {"data": data.decode() if data == b"[DONE]" else msgspec.Raw(data)})
