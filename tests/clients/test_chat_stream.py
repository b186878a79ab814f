"""The openai SDK's chat completion streams, sync and async, for every case over a real socket."""

import json
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from tests.clients.sdk_helpers import (
    CASES,
    CHAT_TOOLS,
    Case,
    Json,
    RecordedReplies,
    cancel_stalled_turn,
    chat_body,
    dump_sdk_object,
    find_engine,
    normalize_completion,
    open_async_sdk,
    open_sdk,
    parse_events,
    post,
    sdk_arguments,
)
from tests.serving import RunningServer

ANSWERED_CASES = [pytest.param(case, id=case.name) for case in CASES if not case.refused]
UNCANCELLED_CASES = [pytest.param(case, id=case.name) for case in CASES if not case.refused and not case.cancel]
INCLUDE_USAGE = {"stream_options": {"include_usage": True}}


@dataclass
class ChatStreamResult:
    """Output of the SDK's stream helper: its chunks, its snapshot and final completion, and the errors that it raised."""

    chunks: list[Any] = field(default_factory=list)
    event_types: list[str] = field(default_factory=list)
    snapshot: Json = field(default_factory=dict)
    final: Json = field(default_factory=dict)
    stream_error: Exception | None = None
    final_error: Exception | None = None

    def add_event(self, event: Any) -> None:
        self.event_types.append(event.type)
        if event.type == "chunk":
            self.chunks.append(dump_sdk_object(event.chunk))
            self.snapshot = dump_sdk_object(event.snapshot)

    @property
    def response_id(self) -> str:
        return str(self.chunks[0]["id"]).replace("chatcmpl-", "resp_")


def read_chat_stream(client: openai.OpenAI, server: RunningServer, case: Case, **fields: Any) -> ChatStreamResult:
    result, tokens_before = ChatStreamResult(), find_engine(server, case).stats().generated_tokens
    with client.chat.completions.stream(**sdk_arguments(chat_body(case)), **INCLUDE_USAGE, **fields) as stream:
        try:
            for event in stream:
                result.add_event(event)
                if case.cancel and len(result.event_types) == 1:
                    cancel_stalled_turn(server, case, result.response_id, tokens_before)
        except openai.APIError as error:
            result.stream_error = error
            return result
        try:
            result.final = dump_sdk_object(stream.get_final_completion())
        except (openai.OpenAIError, AttributeError) as error:
            result.final_error = error
    return result


async def read_chat_stream_async(client: openai.AsyncOpenAI, server: RunningServer, case: Case) -> ChatStreamResult:
    result, tokens_before = ChatStreamResult(), find_engine(server, case).stats().generated_tokens
    async with client.chat.completions.stream(**sdk_arguments(chat_body(case)), **INCLUDE_USAGE) as stream:
        try:
            async for event in stream:
                result.add_event(event)
                if case.cancel and len(result.event_types) == 1:
                    cancel_stalled_turn(server, case, result.response_id, tokens_before)
        except openai.APIError as error:
            result.stream_error = error
            return result
        try:
            result.final = dump_sdk_object(await stream.get_final_completion())
        except (openai.OpenAIError, AttributeError) as error:
            result.final_error = error
    return result


@pytest.mark.parametrize("case", ANSWERED_CASES)
def test_stream_helper_yields_every_chunk_and_raises_documented_errors(case_server: RunningServer, case: Case) -> None:
    with open_sdk(case_server) as (client, replies):
        check_chat_result(read_chat_stream(client, case_server, case), replies, fails=case.fails)


@pytest.mark.parametrize("case", ANSWERED_CASES)
async def test_async_stream_helper_yields_every_chunk_and_raises_documented_errors(
    case_server: RunningServer, case: Case
) -> None:
    async with open_async_sdk(case_server) as (client, replies):
        check_chat_result(await read_chat_stream_async(client, case_server, case), replies, fails=case.fails)


def check_chat_result(result: ChatStreamResult, replies: RecordedReplies, *, fails: bool) -> None:
    """Checks the helper's chunks, event types and errors against the bytes on the wire."""
    assert (result.stream_error is not None) == fails
    if fails:
        sent = parse_events(replies.last().partition(b'data: {"error"')[0] + b"data: [DONE]\n\n")
        assert type(result.stream_error) is openai.APIError
        assert result.chunks == sent
        return
    sent = parse_events(replies.last())
    assert result.chunks == sent
    assert sent[-1]["choices"] == [] and sent[-1]["usage"] == result.snapshot["usage"], "only the last chunk has usage"
    choice = result.snapshot["choices"][0]
    assert choice["message"]["role"] == "assistant"
    calls = choice["message"].get("tool_calls") or []
    if choice["finish_reason"] == "length":
        assert type(result.final_error) is openai.LengthFinishReasonError
    elif any(call["type"] == "custom" for call in calls):
        # The helper of SDK 3.52 raises AttributeError at the end of any stream with a custom call, from any server.
        assert isinstance(result.final_error, AttributeError)
    else:
        assert result.final_error is None
        assert normalize_completion(result.final) == normalize_completion(result.snapshot)
    assert result.event_types.count("tool_calls.function.arguments.done") == sum(
        call["type"] == "function" for call in calls
    )
    assert result.event_types.count("content.done") == bool(choice["message"].get("content"))


@pytest.mark.parametrize("case", UNCANCELLED_CASES)
def test_unstreamed_completion_equals_the_helper_snapshot(case_server: RunningServer, case: Case) -> None:
    with open_sdk(case_server) as (client, replies):
        result = read_chat_stream(client, case_server, case)
        if result.stream_error is not None:
            with pytest.raises(openai.InternalServerError) as failed:
                client.chat.completions.create(**sdk_arguments(chat_body(case)))
            assert isinstance(result.stream_error, openai.APIError)
            assert (failed.value.code, failed.value.body) == (result.stream_error.code, result.stream_error.body)
            return
        completion = dump_sdk_object(client.chat.completions.create(**sdk_arguments(chat_body(case))))
        assert completion == json.loads(replies.last())
    assert normalize_completion(result.snapshot) == normalize_completion(completion)


def test_rejected_job_raises_before_the_first_chunk(case_server: RunningServer) -> None:
    case = next(case for case in CASES if case.refused)
    with open_sdk(case_server) as (client, _), pytest.raises(openai.RateLimitError) as refused:
        read_chat_stream(client, case_server, case)
    assert (refused.value.status_code, refused.value.code) == (429, "rate_limit_exceeded")


def test_usage_is_sent_only_with_include_usage(case_server: RunningServer) -> None:
    body = chat_body(CASES[0])
    with open_sdk(case_server) as (client, replies):
        for chunk in client.chat.completions.create(**body, stream=True):
            assert chunk.usage is None and chunk.choices
        assert b"usage" not in replies.last()
        usages = [chunk.usage for chunk in client.chat.completions.create(**body, stream=True, **INCLUDE_USAGE)]
        assert usages[-1] is not None and usages[-1].total_tokens > 0 and set(usages[:-1]) == {None}


def test_sdk_stream_yields_every_chunk_as_sent(case_server: RunningServer) -> None:
    for case in CASES:
        if case.refused or case.cancel or "fault" in str(case.output) or case.name == "end_of_turn_inside_arguments":
            continue
        with open_sdk(case_server) as (client, replies):
            chunks = [
                dump_sdk_object(chunk)
                for chunk in client.chat.completions.create(**sdk_arguments(chat_body(case)), stream=True)
            ]
            assert chunks == parse_events(replies.last())


def test_each_choice_has_its_own_finish_reason(case_server: RunningServer) -> None:
    case = next(case for case in CASES if case.name == "reasoning_text_and_two_calls")
    with open_sdk(case_server) as (client, replies):
        result = read_chat_stream(client, case_server, case, n=2)
        assert result.final_error is None
        completion = json.loads(post(f"{case_server.url}/chat/completions", json=chat_body(case) | {"n": 2}).content)
        roles = [chunk["choices"][0]["index"] for chunk in result.chunks[:2]]
        assert roles == [0, 1], "choices are opened in order"
        reasons = [choice["finish_reason"] for chunk in result.chunks for choice in chunk["choices"]]
        assert [reason for reason in reasons if reason] == ["tool_calls", "tool_calls"]
        assert len({call["id"] for choice in completion["choices"] for call in choice["message"]["tool_calls"]}) == 4
        assert {choice["index"] for choice in completion["choices"]} == {0, 1}
        first, second = ({**choice, "index": 0} for choice in normalize_completion(result.final)["choices"])
        assert number_calls(first) == number_calls(second), "both played the same script"
        assert result.final["usage"] == completion["usage"]
        single = json.loads(post(f"{case_server.url}/chat/completions", json=chat_body(case)).content)["usage"]
        assert completion["usage"]["prompt_tokens"] == single["prompt_tokens"], "the prompt counts once"
        assert completion["usage"]["completion_tokens"] == 2 * single["completion_tokens"]
        assert all(chunk["id"] == result.chunks[0]["id"] for chunk in result.chunks)
        assert parse_events(replies.last()) == result.chunks


def number_calls(choice: Json) -> Json:
    for number, call in enumerate(choice["message"]["tool_calls"]):
        call["id"] = f"call_{number}"
    return choice


def test_engine_error_in_one_choice_ends_all_choices(case_server: RunningServer) -> None:
    case = next(case for case in CASES if case.name == "engine_fault_inside_a_message")
    with open_sdk(case_server) as (client, _), pytest.raises(openai.APIError) as failed:
        client.chat.completions.create(**chat_body(case), n=3)
    assert failed.value.code == "server_error"
    assert find_engine(case_server, case).stats().running == 0


def test_parallel_calls_have_distinct_indices_ids_and_names(case_server: RunningServer) -> None:
    case = next(case for case in CASES if case.name == "reasoning_text_and_two_calls")
    with open_sdk(case_server) as (client, _):
        fragments = [
            fragment
            for chunk in read_chat_stream(client, case_server, case).chunks
            for choice in chunk["choices"]
            for fragment in choice["delta"].get("tool_calls", [])
        ]
    openers = [fragment for fragment in fragments if "id" in fragment]
    assert [(fragment["index"], fragment["type"], fragment["function"]["name"]) for fragment in openers] == [
        (0, "function", "get_weather"),
        (1, "function", "run"),
    ]
    assert [fragment["index"] for fragment in fragments] == sorted(fragment["index"] for fragment in fragments)
    assert all("name" not in fragment["function"] for fragment in fragments if "id" not in fragment)
    arguments = {
        index: "".join(fragment["function"]["arguments"] for fragment in fragments if fragment["index"] == index)
        for index in (0, 1)
    }
    assert [json.loads(arguments[index]) for index in (0, 1)] == [{"city": "Oslo"}, {"cmd": "ls -la"}]


def test_custom_tool_call_input_is_raw_text(case_server: RunningServer) -> None:
    case = next(case for case in CASES if case.name == "custom_call_in_its_raw_frame")
    with open_sdk(case_server) as (client, _):
        (call,) = client.chat.completions.create(**chat_body(case)).choices[0].message.tool_calls or []
        streamed = read_chat_stream(client, case_server, case).snapshot["choices"][0]["message"]["tool_calls"][0]
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("apply_patch", '*** Begin Patch\n+"quoted" \\n')
    assert streamed["custom"] == {"name": "apply_patch", "input": '*** Begin Patch\n+"quoted" \\n'}


def test_logprobs_belong_to_the_text_of_their_chunk(case_server: RunningServer) -> None:
    case = next(case for case in CASES if case.name == "log_probabilities")
    with open_sdk(case_server) as (client, _):
        result = read_chat_stream(client, case_server, case)
        without_logprobs = read_chat_stream(client, case_server, CASES[0])
    for chunk in result.chunks:
        for choice in chunk["choices"]:
            if text := choice["delta"].get("content"):
                assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == text
    content = result.snapshot["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == result.snapshot["choices"][0]["message"]["content"]
    for entry in content:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 1
    assert all(choice["logprobs"] is None for chunk in without_logprobs.chunks for choice in chunk["choices"])


def test_chat_tools_cover_every_tool_type_but_namespace() -> None:
    assert [tool["type"] for tool in CHAT_TOOLS] == ["function", "function", "custom"]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if case.cancel])
def test_cancelled_turn_has_finish_reason_length(case_server: RunningServer, case: Case) -> None:
    """A client would run the cut call under `tool_calls`, and would trust the cut text under `stop`."""
    with open_sdk(case_server) as (client, _):
        assert read_chat_stream(client, case_server, case).snapshot["choices"][0]["finish_reason"] == "length"
