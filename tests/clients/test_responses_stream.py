"""Every case, over a real socket, through `client.responses.stream(...)` of the openai SDK, sync and async."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest

from tests.clients.sdk_helpers import (
    CASES,
    PLAIN,
    Case,
    Json,
    Tape,
    async_sdk,
    cancel,
    engine,
    events,
    for_sdk,
    get,
    plain,
    post,
    responses_body,
    sdk,
)
from tests.invariants import check
from tests.serving import RunningServer

DONE = b"data: [DONE]\n\n"
ANSWERED = [pytest.param(case, id=case.name) for case in CASES if not case.refused]
ENDING = [pytest.param(case, id=case.name) for case in CASES if not case.refused and not case.cancel]
"""Those that end by themselves."""


@dataclass
class Heard:
    """What the helper gave out: its events, its final response, or what it raised while streaming or at the end."""

    events: list[Any] = field(default_factory=list)
    final: Any = None
    raised: Exception | None = None
    raised_at_the_end: Exception | None = None

    @property
    def id(self) -> str:
        found: str = self.events[0].response.id
        return found


def hear(client: openai.OpenAI, served: RunningServer, case: Case) -> Heard:
    heard, already = Heard(), engine(served, case).stats().generated_tokens
    with client.responses.stream(**for_sdk(responses_body(case))) as stream:
        try:
            for event in stream:
                heard.events.append(event)
                if case.cancel and len(heard.events) == 1:
                    cancel(served, case, heard.id, already)
        except openai.APIError as error:
            heard.raised = error
            return heard
        try:
            heard.final = stream.get_final_response()
        except RuntimeError as error:
            heard.raised_at_the_end = error
    return heard


async def hear_async(client: openai.AsyncOpenAI, served: RunningServer, case: Case) -> Heard:
    heard, already = Heard(), engine(served, case).stats().generated_tokens
    async with client.responses.stream(**for_sdk(responses_body(case))) as stream:
        try:
            async for event in stream:
                heard.events.append(event)
                if case.cancel and len(heard.events) == 1:
                    cancel(served, case, heard.id, already)
        except openai.APIError as error:
            heard.raised = error
            return heard
        try:
            heard.final = await stream.get_final_response()
        except RuntimeError as error:
            heard.raised_at_the_end = error
    return heard


@pytest.mark.parametrize("case", ANSWERED)
def test_the_helper_accepts_what_completes_and_raises_what_is_documented_on_the_rest(
    house: RunningServer, case: Case
) -> None:
    with sdk(house) as (client, tape):
        judge(hear(client, house, case), house, tape)


@pytest.mark.parametrize("case", ANSWERED)
async def test_the_async_helper_does_the_same(house: RunningServer, case: Case) -> None:
    async with async_sdk(house) as (client, tape):
        judge(await hear_async(client, house, case), house, tape)


def judge(heard: Heard, served: RunningServer, tape: Tape) -> None:
    """The wire itself says how it ended; the helper must have said so, after every earlier event."""
    stored = f"{served.url}/responses/{heard.id}"
    raw = get(stored, params={"stream": "true"}).content
    assert raw.startswith(tape.answer()), "read again, a stream is the same bytes"
    wire = events(raw)
    response = check(wire)
    assert get(stored).json() == response
    match wire[-1]["type"]:
        case "response.completed":
            assert heard.raised is heard.raised_at_the_end is None
            assert plain(heard.final) == response
        case "response.incomplete":
            assert str(heard.raised_at_the_end) == "Didn't receive a `response.completed` event."
        case "response.failed":
            wire = wire[:-2]
            assert type(heard.raised) is openai.APIError
            assert heard.raised.message == response["error"]["message"]
            assert heard.raised.code == response["error"]["code"]
    assert [as_sent(event) for event in heard.events] == wire, "no event is missing, none is made up"
    assert_snapshots(heard.events)


def as_sent(event: Any) -> Json:
    """An event without what the helper adds to it."""
    told: Json = plain(event)
    told.pop("snapshot", None)
    return told


def assert_snapshots(said: list[Any]) -> None:
    """What the helper has accumulated at each delta is the sum of the deltas so far."""
    sums: dict[str, str] = {}
    for event in said:
        if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
            sums[event.item_id] = sums.get(event.item_id, "") + event.delta
            assert event.snapshot == sums[event.item_id]


def test_every_way_to_end_is_among_the_cases(house: RunningServer) -> None:
    endings = set()
    for case in CASES:
        if not case.refused and not case.cancel:
            reply = post(f"{house.url}/responses", json=responses_body(case)).json()
            endings.add((reply["status"], (reply["incomplete_details"] or {}).get("reason")))
    assert endings == {("completed", None), ("incomplete", "max_output_tokens"), ("failed", None)}


def test_a_refused_job_raises_before_any_event(house: RunningServer) -> None:
    case = next(case for case in CASES if case.refused)
    with sdk(house) as (client, _), pytest.raises(openai.RateLimitError) as refused:  # noqa: SIM117
        with client.responses.stream(**for_sdk(responses_body(case))):
            pass
    assert (refused.value.status_code, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize("case", ENDING)
def test_a_whole_reply_is_the_last_event_of_the_streamed_one(house: RunningServer, case: Case) -> None:
    with sdk(house) as (client, tape):
        whole = client.responses.create(**for_sdk(responses_body(case)))
        stored = client.responses.retrieve(whole.id)
        assert plain(whole) == plain(stored) == json.loads(tape[0])
        told = events(get(f"{house.url}/responses/{whole.id}?stream=true").content)
        assert check(told) == json.loads(tape[0]) == told[-1]["response"]


@pytest.mark.parametrize("case", ENDING)
def test_reading_on_gives_exactly_the_events_after_that_number(house: RunningServer, case: Case) -> None:
    made = post(f"{house.url}/responses", json=responses_body(case)).json()["id"]
    with httpx.Client(verify=PLAIN, base_url=f"{house.url}/responses/{made}") as reader:
        raw = reader.get("", params={"stream": "true"}).content
        frames = raw.split(b"\n\n")[:-1]
        for seen in range(-1, len(frames) - 1):
            rest = reader.get("", params={"stream": "true", "starting_after": seen}).content
            assert rest == b"".join(frame + b"\n\n" for frame in frames[seen + 1 :])
        beyond = reader.get("", params={"stream": "true", "starting_after": len(frames) + 5}).content
        assert beyond == DONE


def test_the_sdk_reads_on_where_it_was(house: RunningServer) -> None:
    case = next(case for case in CASES if case.name == "reasoning_text_and_two_calls")
    with sdk(house) as (client, tape):
        with client.responses.create(**responses_body(case), stream=True) as stream:
            told = [event.to_dict() for event in stream]
        made = told[0]["response"]["id"]
        for seen in (0, 7, len(told) - 2):
            with client.responses.retrieve(made, stream=True, starting_after=seen) as rest:
                assert [event.to_dict() for event in rest] == told[seen + 1 :]
            assert tape[0].endswith(tape.answer())
        with client.responses.stream(response_id=made, starting_after=7) as helper:
            assert [as_sent(event) for event in helper] == told[8:]
            assert plain(helper.get_final_response()) == told[-1]["response"]


@pytest.mark.parametrize("case", ENDING)
def test_a_plain_stream_gives_every_event_as_it_was_sent(house: RunningServer, case: Case) -> None:
    told, failed = [], False
    with sdk(house) as (client, tape):
        try:
            for event in client.responses.create(**for_sdk(responses_body(case)), stream=True):
                told.append(plain(event))  # noqa: PERF401 - what came before the error is kept
        except openai.APIError:
            failed = True
    sent = events(tape.answer() if not failed else tape.answer().partition(b"event: error")[0] + DONE)
    assert told == sent
    assert failed == (sent[-1]["type"] not in ("response.completed", "response.incomplete"))
