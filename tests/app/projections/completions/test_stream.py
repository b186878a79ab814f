"""Chunks of text completions: the failure of one choice, usage so far and at the end, padding, the best choices."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.projections.completions.stream import CompletionStream, final_text_completion
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.reply_form import CompletionForm
from antiphon.events.base import Event
from antiphon.events.response import Response
from antiphon.events.stream import LifecycleEvent
from tests.app.projections.fold_helpers import Step, detail, run_texts, scored

USAGE_OF_A = {"prompt_tokens": 10, "completion_tokens": 2}


def without_error(event: Event) -> Event:
    """Returns a lifecycle event with a response that does not say why it failed, any other event as it is."""
    if not isinstance(event, LifecycleEvent):
        return event
    return msgspec.structs.replace(event, response=msgspec.structs.replace(event.response, error=None))


def make_log(name: str, steps: Sequence[Step], *, has_error: bool = True) -> EventLog:
    log = EventLog(Response(id=f"resp_{name}", created_at=1, model="m", metadata={}), "me")
    for events, each in steps:
        log.append_step(events if has_error else [*map(without_error, events)], each)
    log.end_log()
    return log


def say(text: str, *, score: float = -1.0, end: str = "stop") -> list[Step]:
    """Returns the steps of a choice that says a text in one token, and ends with another one."""
    step = detail(tokens=(1,), input_tokens=10, cached_tokens=4, logprobs=(scored(1, text, score),))
    return run_texts((text, step), end=end, last=detail(tokens=(2,)))


def read_chunks(data: bytes) -> list[dict[str, Any]]:
    frames = [frame.removeprefix("data: ") for frame in data.decode().split("\n\n")[:-1]]
    return [json.loads(frame) for frame in frames if frame != "[DONE]"]


def stream_logs(*logs: EventLog, **options: Any) -> tuple[CompletionStream, list[dict[str, Any]]]:
    """Returns the chunks of all logs, read one after the other."""
    stream = CompletionStream(logs, CompletionForm(n=len(logs), best_of=len(logs), **options))
    data = stream.initial() + b"".join(stream.encode(index, log.entries) for index, log in enumerate(logs))
    return stream, read_chunks(data + stream.final())


def texts_of(chunks: Sequence[dict[str, Any]]) -> list[str]:
    return [choice["text"] for chunk in chunks for choice in chunk.get("choices", ())]


@pytest.mark.parametrize(("has_error", "message"), [(True, "broken"), (False, "The response failed.")])
def test_failure_of_a_choice_ends_the_stream(*, has_error: bool, message: str) -> None:
    failed, whole = make_log("f", say("a", end="fail"), has_error=has_error), make_log("w", say("b"))
    stream, chunks = stream_logs(failed, whole, include_usage=True)
    assert stream.failure and texts_of(chunks) == ["a"], "nothing follows a failure"
    assert chunks[-1]["error"]["message"] == message and len(chunks) == 2
    stream, chunks = stream_logs(whole, failed)
    assert stream.failure and texts_of(chunks) == ["b", "", "a"] and "error" in chunks[-1]
    stream, chunks = stream_logs(failed, make_log("g", say("c", end="fail")))
    assert chunks[-1]["error"]["message"] == message, "the first failure is reported"


def test_stream_without_a_failure_continues() -> None:
    stream, chunks = stream_logs(make_log("a", say("a")), make_log("b", say("b")))
    assert not stream.failure and texts_of(chunks) == ["a", "", "b", ""]
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("continuous", [False, True])
def test_usage_of_a_stream(*, continuous: bool) -> None:
    _, chunks = stream_logs(make_log("a", say("a")), include_usage=True, continuous_usage=continuous)
    *usages, last = [chunk["usage"] for chunk in chunks]
    assert [usage and usage["completion_tokens"] for usage in usages] == ([1, 2] if continuous else [None, None])
    assert last.items() >= USAGE_OF_A.items() and last["prompt_tokens_details"]["cached_tokens"] == 4
    assert chunks[-1]["choices"] == []


@pytest.mark.parametrize("obfuscate", [False, True])
def test_only_chunks_with_text_are_padded(*, obfuscate: bool) -> None:
    _, chunks = stream_logs(make_log("a", say("a")), include_usage=True, obfuscate=obfuscate)
    assert ["obfuscation" in chunk for chunk in chunks] == [obfuscate, obfuscate, False]


@pytest.mark.parametrize(("request_id", "expected"), [("mine", "cmpl-mine"), ("", "cmpl-a")])
def test_id_is_the_clients_or_the_responses(request_id: str, expected: str) -> None:
    _, chunks = stream_logs(make_log("a", say("a")), request_id=request_id)
    assert {chunk["id"] for chunk in chunks} == {expected}


async def read_reply(*logs: EventLog, **options: Any) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(await final_text_completion(logs, CompletionForm(**options)))
    return reply


async def test_best_choices_of_each_prompt_are_returned() -> None:
    scores = [-3.0, -1.0, -2.0, -0.5, -0.7, -0.6]
    logs = [make_log(f"l{number}", say(f"t{number}", score=score)) for number, score in enumerate(scores)]
    reply = await read_reply(*logs, n=2, best_of=3, logprobs=0)
    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == [
        (0, "t1"),
        (1, "t2"),
        (2, "t3"),
        (3, "t5"),
    ]
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (20, 12)
    assert all(choice["logprobs"] for choice in reply["choices"])
    assert all(choice["logprobs"] is None for choice in (await read_reply(*logs, n=3, best_of=3))["choices"])


@pytest.mark.parametrize(("has_error", "message"), [(True, "broken"), (False, "The response failed.")])
async def test_reply_with_a_failed_choice_is_an_error(*, has_error: bool, message: str) -> None:
    logs = make_log("a", say("a")), make_log("f", say("b", end="fail"), has_error=has_error)
    with pytest.raises(ApiError) as caught:
        await read_reply(*logs, n=2, best_of=2)
    assert (caught.value.status, caught.value.code, caught.value.message) == (500, "server_error", message)
    assert (await read_reply(make_log("c", say("a", end="cancel")), n=1))["choices"][0]["finish_reason"] == "length"
