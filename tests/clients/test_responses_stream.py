"""The openai SDK's response streams, sync and async, for every case over a real socket."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest

from tests.clients.sdk_helpers import (
    CASES,
    Case,
    Json,
    RecordedReplies,
    cancel_stalled_turn,
    dump_sdk_object,
    find_engine,
    get,
    open_async_sdk,
    open_sdk,
    parse_events,
    post,
    responses_body,
    sdk_arguments,
)
from tests.invariants import check_stream
from tests.serving import RunningServer

END_FRAME = b"data: [DONE]\n\n"
ANSWERED_CASES = [pytest.param(case, id=case.name) for case in CASES if not case.refused]
UNCANCELLED_CASES = [pytest.param(case, id=case.name) for case in CASES if not case.refused and not case.cancel]
"""Cases that end without a cancellation."""


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


@pytest.mark.parametrize("case", ANSWERED_CASES)
def test_stream_helper_yields_every_event_and_raises_documented_errors(case_server: RunningServer, case: Case) -> None:
    with open_sdk(case_server) as (client, replies):
        check_response_result(read_response_stream(client, case_server, case), case_server, replies)


@pytest.mark.parametrize("case", ANSWERED_CASES)
async def test_async_stream_helper_yields_every_event_and_raises_documented_errors(
    case_server: RunningServer, case: Case
) -> None:
    async with open_async_sdk(case_server) as (client, replies):
        check_response_result(await read_response_stream_async(client, case_server, case), case_server, replies)


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


def test_cases_cover_every_final_status(case_server: RunningServer) -> None:
    endings = set()
    for case in CASES:
        if not case.refused and not case.cancel:
            reply = post(f"{case_server.url}/responses", json=responses_body(case)).json()
            endings.add((reply["status"], (reply["incomplete_details"] or {}).get("reason")))
    assert endings == {("completed", None), ("incomplete", "max_output_tokens"), ("failed", None)}


def test_rejected_job_raises_before_the_first_event(case_server: RunningServer) -> None:
    case = next(case for case in CASES if case.refused)
    with open_sdk(case_server) as (client, _), pytest.raises(openai.RateLimitError) as refused:  # noqa: SIM117
        with client.responses.stream(**sdk_arguments(responses_body(case))):
            pass
    assert (refused.value.status_code, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize("case", UNCANCELLED_CASES)
def test_unstreamed_response_equals_the_last_event_of_its_stream(case_server: RunningServer, case: Case) -> None:
    with open_sdk(case_server) as (client, replies):
        response = client.responses.create(**sdk_arguments(responses_body(case)))
        stored = client.responses.retrieve(response.id)
        assert dump_sdk_object(response) == dump_sdk_object(stored) == json.loads(replies[0])
        events = parse_events(get(f"{case_server.url}/responses/{response.id}?stream=true").content)
        assert check_stream(events) == json.loads(replies[0]) == events[-1]["response"]


@pytest.mark.parametrize("case", UNCANCELLED_CASES)
def test_starting_after_returns_exactly_the_later_events(case_server: RunningServer, case: Case) -> None:
    response_id = post(f"{case_server.url}/responses", json=responses_body(case)).json()["id"]
    url = f"{case_server.url}/responses/{response_id}"
    with httpx.Client() as client:
        body = client.get(url, params={"stream": "true"}).content
        frames = body.split(b"\n\n")[:-1]
        assert len(frames) > 2
        for number in range(-1, len(frames) - 1):
            remaining = client.get(url, params={"stream": "true", "starting_after": number}).content
            assert remaining == b"".join(frame + b"\n\n" for frame in frames[number + 1 :])
        beyond = client.get(url, params={"stream": "true", "starting_after": len(frames) + 5}).content
        assert beyond == END_FRAME


def test_sdk_resumes_a_stream_after_any_event(case_server: RunningServer) -> None:
    case = next(case for case in CASES if case.name == "reasoning_text_and_two_calls")
    with open_sdk(case_server) as (client, replies):
        with client.responses.create(**responses_body(case), stream=True) as stream:
            events = [event.to_dict() for event in stream]
        response_id = events[0]["response"]["id"]
        for number in (0, 7, len(events) - 2):
            with client.responses.retrieve(response_id, stream=True, starting_after=number) as remaining:
                assert [event.to_dict() for event in remaining] == events[number + 1 :]
            assert replies[0].endswith(replies.last())
        with client.responses.stream(response_id=response_id, starting_after=7) as helper:
            assert [dump_event(event) for event in helper] == events[8:]
            assert dump_sdk_object(helper.get_final_response()) == events[-1]["response"]


@pytest.mark.parametrize("case", UNCANCELLED_CASES)
def test_sdk_stream_yields_every_event_as_sent(case_server: RunningServer, case: Case) -> None:
    events, failed = [], False
    with open_sdk(case_server) as (client, replies):
        try:
            for event in client.responses.create(**sdk_arguments(responses_body(case)), stream=True):
                events.append(dump_sdk_object(event))  # noqa: PERF401 - keeps the events before an error
        except openai.APIError:
            failed = True
    sent = parse_events(replies.last() if not failed else replies.last().partition(b"event: error")[0] + END_FRAME)
    assert events == sent
    assert failed == (sent[-1]["type"] not in ("response.completed", "response.incomplete"))
