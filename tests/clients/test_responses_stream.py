"""The openai SDK's response streams, sync and async, for every case over a real socket."""

import json

import httpx
import openai
import pytest

from tests.clients.response_streams import (
    check_response_result,
    dump_event,
    read_response_stream,
    read_response_stream_async,
)
from tests.clients.sdk_helpers import (
    CASES,
    Case,
    dump_sdk_object,
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
