"""Reads a log that has ended through each API that has conversations."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from antiphon.app.errors import ApiError
from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.projections import responses
from antiphon.app.projections.chat.stream import ChatStream, final_completion
from antiphon.app.projections.messages.stream import MessagesStream
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.reply_form import ChatForm
from tests.snapshots import stream_sums
from tests.snapshots.api_readings import Json
from tests.snapshots.run_case import CaseResult, MessageResult, read_message


@dataclass
class LogReadings:
    """One log, read through each API that has conversations: the sum of its stream, and its whole body."""

    response: Json
    chat: Json | ApiError
    chat_sum: Json
    message: Json | ApiError
    message_sum: tuple[Json, list[int]]
    stream_errors: list[str]
    """Message of the error that each stream ends with."""


async def read_log(log: EventLog, form: ChatForm) -> LogReadings:
    """Reads a log that has ended through Responses, Chat and Messages, streamed and whole."""
    frames = {
        api: collect_frames(create, log)
        for api, create in {
            "responses": lambda: responses.ResponsesStream(log),
            "chat": lambda: ChatStream([log], form),
            "messages": lambda: MessagesStream(log),
        }.items()
    }
    events = CaseResult(frames["responses"], b"", log).data
    chunks = CaseResult(frames["chat"], b"", log).data
    message_events = MessageResult(frames["messages"], {}).events
    response = stream_sums.sum_responses_events(events)
    assert json.loads(await responses.final_response(log)) == response == events[-1]["response"]
    errors = [event["error"]["message"] for event in (events[-2], chunks[-1], message_events[-1]) if "error" in event]
    return LogReadings(
        response=response,
        chat=await read_body(final_completion([log], form)),
        chat_sum=stream_sums.sum_chat_chunks(chunks),
        message=(await read_message(CaseResult(b"", b"", log))).reply,
        message_sum=stream_sums.sum_message_events(message_events),
        stream_errors=errors,
    )


async def read_body(reply: Awaitable[bytes]) -> Json | ApiError:
    try:
        body: Json = json.loads(await reply)
    except ApiError as error:
        return error
    return body


def collect_frames(create: Callable[[], StreamEncoder], log: EventLog) -> bytes:
    """Returns the frames of a log that has ended, after a check that its grouping into reads does not matter."""
    results = set()
    for size in (1, 2, len(log.entries)):
        encoder = create()
        groups = [log.entries[start : start + size] for start in range(0, len(log.entries), size)]
        results.add(encoder.initial() + b"".join(encoder.encode(0, group) for group in groups) + encoder.final())
    [frames] = results
    return frames
