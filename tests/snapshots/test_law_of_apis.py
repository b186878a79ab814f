"""The law of equality: all APIs are readings of the same events, for every case in every chunking of its tokens.

- A stream adds up to the body that a request without `stream` gets.
- Responses, Chat and Messages agree on text, reasoning, calls, usage and the reason of the end.
- The text of a completion is the detokenized output.
- None of this depends on the engine's chunks, or on how many events of the log a reader gets at once.
"""

import json
from collections.abc import Iterable

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.reply_form import ChatForm
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.format import ModelFormat
from tests.counts import FULL_COUNTS
from tests.snapshots import api_readings, event_lines, stream_sums
from tests.snapshots.cases import CASES, Case
from tests.snapshots.chunkings import list_chunkings, output_tokens
from tests.snapshots.completion_checks import ALL_DETAILS, ECHO, check_details, detokenize
from tests.snapshots.dialect_cases import list_dialect_cases
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.log_readings import LogReadings, read_log
from tests.snapshots.run_case import (
    CaseResult,
    make_single_case_registry,
    read_chat,
    read_completion,
    read_responses,
    run_messages_request,
)

ALL_CASES = (*CASES, *EXTRA_CASES)
RUN_CASES = [case for case in ALL_CASES if not case.refused]
EACH_RUN_CASE = pytest.mark.parametrize("case", RUN_CASES, ids=lambda case: case.name)
QUICK_KEEPALIVE = {"timeouts": TurnTimeouts(keepalive_after_s=0.01)}
"""Options of the turn manager: a case that waits for a keepalive need not wait long for it."""
DIALECT_CHUNKINGS = ("one chunk", "random cuts 0")
"""Chunkings of dialects' outputs with reduced counts; `tests/harmony` parses these outputs in every chunking."""


def check_readings(log: EventLog, readings: LogReadings) -> None:
    """Checks that the streams of a log add up to the bodies, and that the bodies agree."""
    if readings.response["status"] == "failed":
        check_failure(readings)
        return
    assert not isinstance(readings.chat, ApiError) and not isinstance(readings.message, ApiError)
    assert stream_sums.drop_empty(readings.chat) == stream_sums.drop_empty(readings.chat_sum)
    assert readings.message == whole_sum(readings)
    stop_string = last_stop_string(log)
    in_chat = api_readings.expected_chat(readings.response, stop_string=stop_string)
    assert api_readings.read_chat_choice(readings.chat) == in_chat
    in_message = api_readings.expected_message(readings.response, stop_string=stop_string)
    assert api_readings.read_message_body(readings.message) == in_message
    bodies = (readings.response, readings.chat, readings.message)
    assert len({body["id"].replace("-", "_").partition("_")[2] for body in bodies}) == 1, (
        "the ids of one turn differ in their prefix only"
    )
    assert not readings.stream_errors


def whole_sum(readings: LogReadings) -> api_readings.Json:
    """Returns the sum of a message's stream without the call that was cut off, which has no end in the stream."""
    message, open_blocks = readings.message_sum
    unfinished = [index for index in open_blocks if message["content"][index]["type"] == "tool_use"]
    assert unfinished == open_blocks or readings.stream_errors, "only a call stays open, or what an error ends"
    cut_calls = [
        item for item in readings.response["output"] if item["type"].endswith("_call") and item["status"] != "completed"
    ]
    assert [message["content"][index]["input"] for index in unfinished] == [begun_input(item) for item in cut_calls]
    complete = [block for index, block in enumerate(message["content"]) if index not in unfinished]
    return message | {"content": complete}


def begun_input(item: api_readings.Json) -> str:
    """Returns the JSON text that the stream of a message shows of a call that was cut off."""
    if item["type"] == "function_call":
        return str(item["arguments"])
    return '{"input": ' + json.dumps(item["input"], ensure_ascii=False)[:-1]


def check_failure(readings: LogReadings) -> None:
    """Checks that every API reports the failure, streamed and whole, and that the streams show the partial output."""
    error = readings.response["error"]
    assert readings.stream_errors == [error["message"]] * 3
    for body in (readings.chat, readings.message):
        assert isinstance(body, ApiError) and (body.code, body.message) == (error["code"], error["message"])
    chat_reading = api_readings.read_chat_choice(readings.chat_sum)
    assert chat_reading.content == api_readings.expected_chat(readings.response, stop_string=None).content
    message_reading = api_readings.read_message_body(whole_sum(readings))
    assert message_reading.content == api_readings.expected_message(readings.response, stop_string=None).content


def last_stop_string(log: EventLog) -> str | None:
    """Returns the stop string that ended the turn."""
    detail = log.entries[-1].detail
    return None if detail is None else detail.stop_string


async def run_logs(case: Case) -> dict[str, EventLog]:
    """Runs the case through the decoder of each API that can express it. Returns the logs, which have ended.

    Also checks the streams that were read while the turns ran.
    """
    logs: dict[str, EventLog | None] = {}
    if "responses" in case.faces:
        result = await read_responses(case, **QUICK_KEEPALIVE)
        assert not isinstance(result.reply, ApiError)
        assert json.loads(result.reply) == stream_sums.sum_responses_events(result.data)
        logs["responses"] = result.log
        if case.name not in NOT_IN_MESSAGES:
            logs["messages"] = await run_messages_request(case)
    if "chat" in case.faces:
        result = await read_chat(case)
        check_chat_reply(result, case.chat.get("n", 1))
        logs["chat"] = result.log
    return {api: log for api, log in logs.items() if log is not None}


def check_chat_reply(result: CaseResult, num_choices: int) -> None:
    """Checks that the chunks of all choices add up to the completion."""
    if isinstance(result.reply, ApiError):
        assert result.data[-1] == json.loads(result.reply.encoded_body)
        return
    completion, chunk_sum = json.loads(result.reply), stream_sums.sum_chat_chunks(result.data)
    assert stream_sums.drop_empty(completion) == stream_sums.drop_empty(chunk_sum)
    assert [choice["index"] for choice in completion["choices"]] == list(range(num_choices))
    assert result.log is not None and result.log.response.usage is not None
    output_tokens_each = result.log.response.usage.output_tokens
    assert completion["usage"]["completion_tokens"] == num_choices * output_tokens_each, "choices say the same"


NOT_IN_MESSAGES = {
    "background_with_a_keepalive": "it has no background",
    "compaction": "it has no compaction",
}
"""Cases that a request of Messages cannot express, with the reason."""


def comparable(case: Case, response: api_readings.Json) -> api_readings.Json:
    """Returns what must not depend on the chunks: all, with ids in the order of their appearance, as parallel turns
    share a counter.
    """
    result: api_readings.Json = json.loads(event_lines.IdNumbers().replace_ids(json.dumps(response)))
    if case.name in CUT_BY_THE_SERVER:
        del result["usage"]
    return result


CUT_BY_THE_SERVER = ("stop_string", "second_call_when_parallel_calls_are_off")
"""Cases that the server ends within a chunk, all of whose tokens are counted: the engine has generated them."""


def check_turns(case: Case, readings: dict[str, LogReadings]) -> None:
    """Checks that the requests of the three APIs lead to the same turn."""
    told = [
        (
            api_readings.read_message_body(whole_sum(each)).content,
            each.response["status"],
            each.response["usage"] and each.response["usage"]["output_tokens"],
        )
        for api, each in readings.items()
        if api != DIFFERENT_TURNS.get(case.name)
    ]
    assert all(each == told[0] for each in told), "the requests lead to different turns"


DIFFERENT_TURNS = {
    "namespaced_call": "responses",  # only it has namespaces
    "custom_call_in_its_raw_frame": "messages",  # it has no tools that take raw text
    "end_marker_inside_a_custom_input": "messages",
}
"""API whose request cannot say the same as the others', by case. Its log obeys the law by itself."""


async def check_law(case: Case, chunkings: Iterable[Case]) -> None:
    """Checks that a case is told alike by Responses, Chat and Messages, in each of these chunkings."""
    form = chat_form(case)
    first: dict[str, LogReadings] = {}
    for chunked in chunkings:
        logs = await run_logs(chunked)
        readings = {api: await read_log(log, form) for api, log in logs.items()}
        for api, log in logs.items():
            check_readings(log, readings[api])
        check_turns(case, readings)
        first = first or readings
        for api, each in readings.items():
            assert comparable(case, each.response) == comparable(case, first[api].response)


@EACH_RUN_CASE
async def test_apis_agree_in_every_chunking(case: Case) -> None:
    await check_law(case, list_chunkings(case).values())


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
async def test_apis_agree_on_the_outputs_of_every_dialect(dialect: Dialect) -> None:
    cases = list_dialect_cases(dialect)
    # With reduced counts, each case is run in a third of the dialects.
    for case in cases if FULL_COUNTS else cases[len(dialect.name) % 3 :: 3]:
        chunkings = list_chunkings(case, single_cuts=False)
        await check_law(case, chunkings.values() if FULL_COUNTS else map(chunkings.__getitem__, DIALECT_CHUNKINGS))


@EACH_RUN_CASE
async def test_completion_is_the_detokenized_output_in_every_chunking(case: Case) -> None:
    [model] = make_single_case_registry(case).served
    tokens = cut_at_stop(output_tokens(case, model.format), model.format)
    text = ECHO + detokenize(tokens, model.format)
    first: api_readings.Json | None = None
    for chunked in list_chunkings(case).values():
        result = await read_completion(chunked, n=2, **ALL_DETAILS)
        choices = stream_sums.sum_completion_chunks(result.data)
        if isinstance(result.reply, ApiError):
            assert case.fails and result.data[-1] == json.loads(result.reply.encoded_body)
            assert all(text.startswith(choice["text"]) for choice in choices.values())
            continue
        completion = json.loads(result.reply)
        first = first or completion
        assert completion == first, "the completion depends on the chunks"
        assert list(choices.values()) == completion["choices"] and len(choices) == 2
        for choice in choices.values():
            assert choice["text"] == text
            assert choice["token_ids"][: len(tokens)] == tokens and len(choice["token_ids"]) <= len(tokens) + 1
            assert choice["finish_reason"] == ("length" if case.finish == "length" or case.cancel else "stop")
        assert result.data[-1]["choices"] == [] and result.data[-1]["usage"] == completion["usage"]
        assert {(chunk["id"], chunk["object"]) for chunk in result.data} == {(completion["id"], "text_completion")}
        check_details(completion)


def cut_at_stop(tokens: list[int], model_format: ModelFormat) -> list[int]:
    """Returns the tokens up to the first one that ends a turn."""
    ends = [index for index, token in enumerate(tokens) if token in model_format.stop_ids]
    return tokens[: ends[0] + 1] if ends else tokens


@pytest.mark.parametrize("case", [case for case in ALL_CASES if case.refused], ids=lambda case: case.name)
async def test_refused_turn_is_the_same_error_in_every_api(case: Case) -> None:
    results = [await read_responses(case), await read_chat(case), await read_completion(case)]
    with pytest.raises(ApiError) as raised:
        await run_messages_request(case)
    assert not any(result.frames for result in results), "an error before the first event is no stream"
    errors = [*(result.reply for result in results), raised.value]
    [told] = {(error.status, error.code, error.message) for error in errors if isinstance(error, ApiError)}
    assert told[0] == 429 and all(isinstance(error, ApiError) for error in errors)


def chat_form(case: Case) -> ChatForm:
    """Returns the request by which logs are read as a chat."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Go on."}], "stream": True}
    shown = {"stream_options": {"include_usage": True}} | ({"logprobs": True} if case.chat.get("logprobs") else {})
    return read_chat_request(body | shown, make_single_case_registry(case)).form
