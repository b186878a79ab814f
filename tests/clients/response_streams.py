"""Response streams as the SDK for Python reads them, and checks of them."""

from dataclasses import dataclass, field
from typing import Any

import openai

from tests.clients.sdk_helpers import (
    Case,
    Json,
    RecordedReplies,
    cancel_stalled_turn,
    dump_sdk_object,
    find_engine,
    get,
    parse_events,
    responses_body,
    sdk_arguments,
)
from tests.invariants import check_stream
from tests.serving import RunningServer


@dataclass
class ResponseStreamResult:
    """Output of the SDK's stream helper: its events, its final response, and the errors that it raised."""

    events: list[Any] = field(default_factory=list)
    final: Any = None
    stream_error: Exception | None = None
    final_error: Exception | None = None

    @property
    def id(self) -> str:
        response_id: str = self.events[0].response.id
        return response_id


def read_response_stream(client: openai.OpenAI, server: RunningServer, case: Case) -> ResponseStreamResult:
    result, tokens_before = ResponseStreamResult(), find_engine(server, case).stats().generated_tokens
    with client.responses.stream(**sdk_arguments(responses_body(case))) as stream:
        try:
            for event in stream:
                result.events.append(event)
                if case.cancel and len(result.events) == 1:
                    cancel_stalled_turn(server, case, result.id, tokens_before)
        except openai.APIError as error:
            result.stream_error = error
            return result
        try:
            result.final = stream.get_final_response()
        except RuntimeError as error:
            result.final_error = error
    return result


async def read_response_stream_async(
    client: openai.AsyncOpenAI, server: RunningServer, case: Case
) -> ResponseStreamResult:
    result, tokens_before = ResponseStreamResult(), find_engine(server, case).stats().generated_tokens
    async with client.responses.stream(**sdk_arguments(responses_body(case))) as stream:
        try:
            async for event in stream:
                result.events.append(event)
                if case.cancel and len(result.events) == 1:
                    cancel_stalled_turn(server, case, result.id, tokens_before)
        except openai.APIError as error:
            result.stream_error = error
            return result
        try:
            result.final = await stream.get_final_response()
        except RuntimeError as error:
            result.final_error = error
    return result


def check_response_result(result: ResponseStreamResult, server: RunningServer, replies: RecordedReplies) -> None:
    """Checks the helper's events and errors against the bytes on the wire and the stored response."""
    stored = f"{server.url}/responses/{result.id}"
    raw = get(stored, params={"stream": "true"}).content
    assert raw.startswith(replies.last()), "a replayed stream has the same bytes"
    wire = parse_events(raw)
    response = check_stream(wire)
    assert get(stored).json() == response
    match wire[-1]["type"]:
        case "response.completed":
            assert result.stream_error is result.final_error is None
            assert dump_sdk_object(result.final) == response
        case "response.incomplete":
            assert str(result.final_error) == "Didn't receive a `response.completed` event."
        case "response.failed":
            wire = wire[:-2]
            assert type(result.stream_error) is openai.APIError
            assert result.stream_error.message == response["error"]["message"]
            assert result.stream_error.code == response["error"]["code"]
    assert [dump_event(event) for event in result.events] == wire, "no event is missing or added"
    check_snapshots(result.events)


def dump_event(event: Any) -> Json:
    """Returns an event as JSON, without the keys that the helper adds."""
    dumped: Json = dump_sdk_object(event)
    dumped.pop("snapshot", None)
    return dumped


def check_snapshots(events: list[Any]) -> None:
    """Checks that the helper's snapshot at each delta is the concatenation of the deltas so far."""
    texts: dict[str, str] = {}
    for event in events:
        if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
            texts[event.item_id] = texts.get(event.item_id, "") + event.delta
            assert event.snapshot == texts[event.item_id]
