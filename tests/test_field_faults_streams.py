"""Faults in the streams of other servers: the same input gives a correct stream here."""

import json
from typing import Any

import httpx
import pytest

from antiphon.app.errors import ApiError
from tests.app.requests.request_builders import read_responses_spec, summarize_error
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry, serve
from tests.snapshots.cases import CASES, RUN_CALL, TOOLS, WEATHER_CALL, Case
from tests.snapshots.run_case import read_chat, read_responses

Json = dict[str, Any]
CALLS_WITHOUT_ARGUMENTS = [
    ("hermes", '<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "run"}\n</tool_call>'),
    ("qwen3-coder", "<tool_call>\n<function=run>\n</function>\n</tool_call>"),
    ("gpt-oss", "<|channel|>commentary to=functions.run <|constrain|>json<|message|>{}<|call|>"),
    ("gpt-oss", "<|channel|>commentary to=functions.run <|constrain|>json<|message|><|call|>"),
]
COMPLETED_CASES = [case for case in CASES if not (case.refused or case.cancel or case.fails or case.finish == "length")]
TEXT_CASES = [case for case in CASES if all(isinstance(step, str) for step in case.output)]
"""Cases whose model output is text without faults or pauses."""
LIMITED_CASES = [case for case in CASES if case.finish == "length" and "blanks" not in case.name]
TEXT_OUTPUTS = {
    "hermes": "Some words",
    "qwen3-coder": "Some words",
    "gpt-oss": "<|channel|>final<|message|>Some words",
}


async def run_output(
    output: list[Any] | str, dialect: str = "hermes", *, tokens_per_chunk: int = 0, **case_fields: Any
) -> tuple[list[Json], Json]:
    """Returns the checked events of one model output through `/v1/responses`, and their final response."""
    pieces = [output] if isinstance(output, str) else output
    reading = await read_responses(Case("case", pieces, dialect=dialect, step=tokens_per_chunk, **case_fields))
    response = check_stream(reading.data)
    assert not isinstance(reading.reply, ApiError) and json.loads(reading.reply) == response
    return reading.data, response


def list_item_types(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def select_events(events: list[Json], event_type: str) -> list[Json]:
    return [event for event in events if event["type"] == f"response.{event_type}"]


# Contents of a stream


@pytest.mark.parametrize("tokens_per_chunk", [0, 1, 3])
async def test_single_call_is_the_only_item_at_index_0(tokens_per_chunk: int) -> None:
    events, response = await run_output(RUN_CALL, tokens_per_chunk=tokens_per_chunk)
    assert list_item_types(response) == ["function_call"]
    assert {event["output_index"] for event in events if "output_index" in event} == {0}
    assert select_events(events, "function_call_arguments.delta")


@pytest.mark.parametrize("tokens_per_chunk", [0, 1])
async def test_text_before_a_call_is_done_once(tokens_per_chunk: int) -> None:
    events, response = await run_output(["Words first.\n\n", RUN_CALL], tokens_per_chunk=tokens_per_chunk)
    assert list_item_types(response) == ["message", "function_call"]
    assert [event["text"] for event in select_events(events, "output_text.done")] == ["Words first."]
    assert len({item["id"] for item in response["output"]}) == 2


async def test_later_reasoning_is_a_separate_item_with_its_own_index() -> None:
    output = ["<think>\nOne.\n</think>\n\n", WEATHER_CALL, "\n<think>\nTwo.\n</think>\n\n", "Words."]
    events, response = await run_output(output, tokens_per_chunk=1)
    assert list_item_types(response) == ["reasoning", "function_call", "reasoning", "message"]
    assert len({item["id"] for item in response["output"]}) == 4
    assert [event["output_index"] for event in select_events(events, "output_item.added")] == [0, 1, 2, 3]


@pytest.mark.parametrize("case", [case for case in CASES if case.dialect == "gpt-oss"], ids=lambda case: case.name)
async def test_gpt_oss_events_of_an_item_share_one_output_index(case: Case) -> None:
    for tokens_per_chunk in (0, 1):
        events, response = await run_output(case.output, case.dialect, tokens_per_chunk=tokens_per_chunk)
        for index, item in enumerate(response["output"]):
            indices = {event["output_index"] for event in events if event.get("item_id") == item["id"]}
            indices |= {
                event["output_index"] for event in events if "item" in event and event["item"]["id"] == item["id"]
            }
            assert indices == {index}
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        assert len(select_events(events, "function_call_arguments.done")) == len(calls)


async def test_reasoning_has_separate_events() -> None:
    events, response = await run_output("<think>\nA secret.\n</think>\n\nWords.")
    assert [event["delta"] for event in select_events(events, "output_text.delta")] == ["Words."]
    assert "".join(event["delta"] for event in select_events(events, "reasoning_text.delta")) == "A secret."
    assert "secret" not in json.dumps(response["output"][1])


@pytest.mark.parametrize("case", COMPLETED_CASES, ids=lambda case: case.name)
async def test_completed_response_has_a_done_event_for_every_added_event(case: Case) -> None:
    events = (await read_responses(case)).data
    assert events[-1]["type"] == "response.completed"
    output = events[-1]["response"]["output"]
    for added, done in [
        ("output_item.added", "output_item.done"),
        ("content_part.added", "content_part.done"),
    ]:
        assert len(select_events(events, added)) == len(select_events(events, done))
    assert len(select_events(events, "output_item.done")) == len(output)
    kinds = [part["type"] for item in output if item["type"] == "message" for part in item["content"]]
    assert len(select_events(events, "output_text.done")) == kinds.count("output_text")
    assert len(select_events(events, "refusal.done")) == kinds.count("refusal")


@pytest.mark.parametrize("dialect", TEXT_OUTPUTS)
def test_text_streams_immediately_with_tools_declared(dialect: str) -> None:
    """Text is not held back to detect calls: it is sent while the model is stalled."""
    registry = scripted_registry([{"name": "x", "output": [TEXT_OUTPUTS[dialect], {"stall": True}]}], dialect=dialect)
    body = {"model": "scripted", "input": "hi", "tools": TOOLS, "stream": True}
    with (
        serve(registry) as server,
        httpx.stream("POST", f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as reply,
    ):
        text = ""
        for chunk in reply.iter_text():
            text += chunk
            if '"delta":"words"' in text or '"delta":" words"' in text or '"delta":"s"' in text:
                break
        assert "response.completed" not in text


async def test_argument_json_is_not_reserialized() -> None:
    arguments = '{"cmd":  "caf\\u00e9 é", "b" : 1.50,\n"b": [ ]}'
    for tokens_per_chunk in (0, 1):
        events, response = await run_output(
            f'<tool_call>\n{{"name": "run", "arguments": {arguments}}}\n</tool_call>', tokens_per_chunk=tokens_per_chunk
        )
        assert response["output"][0]["arguments"] == arguments
        assert "".join(event["delta"] for event in select_events(events, "function_call_arguments.delta")) == arguments


# Several tokens in one chunk, and boundaries inside a chunk


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: case.name)
async def test_tokens_per_chunk_do_not_change_items_or_their_order(case: Case) -> None:
    outputs = []
    for output, tokens_per_chunk in ((case.output, 1), (["".join(case.output)], 0), (["".join(case.output)], 5)):
        reading = await read_responses(
            Case("case", output, "", case.dialect, case.finish, tokens_per_chunk, case.request, case.responses)
        )
        outputs.append(_without_ids(check_stream(reading.data)["output"]))
    assert outputs[0] == outputs[1] == outputs[2]


def _without_ids(output: list[Json]) -> list[Json]:
    for item in output:
        for part in item.get("content", []):
            part.pop("logprobs", None)
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in output]


async def test_reasoning_text_and_calls_in_one_chunk_keep_their_order() -> None:
    output = "<think>\nA.\n</think>\n\nB.\n" + WEATHER_CALL + RUN_CALL
    _, response = await run_output(output, tokens_per_chunk=0)
    assert list_item_types(response) == ["reasoning", "message", "function_call", "function_call"]


# Calls


@pytest.mark.parametrize("tokens_per_chunk", [0, 1])
@pytest.mark.parametrize(("dialect", "output"), CALLS_WITHOUT_ARGUMENTS)
async def test_call_without_arguments_gets_an_empty_object(dialect: str, output: str, tokens_per_chunk: int) -> None:
    events, response = await run_output(output, dialect, tokens_per_chunk=tokens_per_chunk)
    (item,) = response["output"]
    assert (item["name"], item["arguments"], item["status"]) == ("run", "{}", "completed")
    assert list(dict.fromkeys(event["type"].removeprefix("response.") for event in events[2:-1])) == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]


async def test_tag_arguments_are_streamed_in_small_deltas() -> None:
    output = (
        "<tool_call>\n<function=run>\n<parameter=cmd>\necho one two three four\n</parameter>\n</function>\n</tool_call>"
    )
    events, response = await run_output(output, "qwen3-coder", tokens_per_chunk=1)
    deltas = [event["delta"] for event in select_events(events, "function_call_arguments.delta")]
    assert len(deltas) > 10 and max(map(len, deltas)) < 20, "arguments are streamed, not sent in one piece at the end"
    assert json.loads(response["output"][0]["arguments"]) == {"cmd": "echo one two three four"}


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("opener", ["<tool_call>", "<tool_call>\n", '<tool_call>\n{"name"', '<tool_call>\n{"na'])
async def test_opener_without_a_call_is_text(opener: str, finish: str) -> None:
    for tokens_per_chunk in (0, 1):
        _, response = await run_output(["Words ", opener], finish=finish, tokens_per_chunk=tokens_per_chunk)
        assert list_item_types(response) == ["message"]
        assert response["output"][0]["content"][0]["text"].strip() == f"Words {opener}".strip()


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.run<|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.run <|constrain|>json<|message|>",
        "<|channel|>commentary to=run <|constrain|>json<|message|>",
        " to=functions.run<|channel|>commentary json<|message|>",
        "<|channel|>analysis to=functions.run code<|message|>",
    ],
)
async def test_header_markers_stay_out_of_names_and_arguments(header: str) -> None:
    _, response = await run_output(header + '{"cmd": "ls"}<|call|>', "gpt-oss", tokens_per_chunk=1)
    assert [(item["name"], item["arguments"]) for item in response["output"]] == [("run", '{"cmd": "ls"}')]


@pytest.mark.parametrize("name", ["python", "browser.search", "functions.launch"])
async def test_call_of_a_tool_not_offered_is_text(name: str) -> None:
    output = f"<|channel|>commentary to={name} code<|message|>print(1)<|call|>"
    _, response = await run_output(output, "gpt-oss", responses={"tools": []})
    assert "function_call" not in list_item_types(response) and response["status"] == "completed"
    assert "print(1)" in json.dumps(response["output"])


@pytest.mark.parametrize("dialect", ["hermes", "qwen3-coder", "gpt-oss"])
async def test_tool_choice_none_prevents_calls_in_every_dialect(dialect: str) -> None:
    output = {
        "hermes": RUN_CALL,
        "qwen3-coder": "<tool_call>\n<function=run>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>",
        "gpt-oss": '<|channel|>commentary to=functions.run <|constrain|>json<|message|>{"cmd": "ls"}<|call|>',
    }[dialect]
    _, response = await run_output(output, dialect, request={"tool_choice": "none"})
    assert list_item_types(response) == ["message"] and "ls" in response["output"][0]["content"][0]["text"]


async def test_interleaved_text_and_calls_are_complete() -> None:
    _, response = await run_output(
        ["A long text before. ", RUN_CALL, " And a text after.", "\n", WEATHER_CALL], tokens_per_chunk=1
    )
    assert list_item_types(response) == ["message", "function_call", "message", "function_call"]
    texts = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]
    assert [text.strip() for text in texts] == ["A long text before.", "And a text after."]


# Whitespace and empty items


@pytest.mark.parametrize(
    "output", ["<think>\n\n</think>\n\nWords.", "<think></think>Words.", "<think>\n</think>\n\nWords."]
)
async def test_empty_reasoning_makes_no_item(output: str) -> None:
    for tokens_per_chunk in (0, 1):
        events, response = await run_output(output, tokens_per_chunk=tokens_per_chunk)
        assert list_item_types(response) == ["message"] and not select_events(events, "reasoning_text.delta")


async def test_line_feeds_around_calls_make_no_messages() -> None:
    _, response = await run_output(
        ["<think>\nHm.\n</think>\n\n\n", RUN_CALL, "\n\n", WEATHER_CALL, "\n"], tokens_per_chunk=1
    )
    assert list_item_types(response) == ["reasoning", "function_call", "function_call"]


@pytest.mark.parametrize("dialect", ["hermes", "gpt-oss"])
async def test_empty_message_makes_no_item(dialect: str) -> None:
    output = {"hermes": "\n", "gpt-oss": "<|channel|>final<|message|><|return|>"}[dialect]
    _, response = await run_output(output, dialect)
    assert response["output"] == [] and response["status"] == "completed"


# Ends of a response


@pytest.mark.parametrize("case", LIMITED_CASES, ids=lambda case: case.name)
async def test_truncated_response_and_its_last_item_are_incomplete(case: Case) -> None:
    events, response = await run_output(case.output, case.dialect, finish="length")
    assert events[-1]["type"] == "response.incomplete"
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"
    assert all(item.get("status") == "completed" for item in response["output"][:-1])


async def test_both_apis_report_the_token_limit() -> None:
    case = next(case for case in CASES if case.name == "token_limit_inside_a_message")
    responses_reading, chat_reading = await read_responses(case), await read_chat(case)
    assert responses_reading.data[-1]["response"]["incomplete_details"]["reason"] == "max_output_tokens"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chat_reading.data if chunk["choices"]][-1] == "length"


async def test_cancelled_response_is_never_completed() -> None:
    case = next(case for case in CASES if case.name == "cancelled_inside_a_message")
    events = (await read_responses(case)).data
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")


async def test_failed_response_has_its_event_status_and_error() -> None:
    case = next(case for case in CASES if case.name == "engine_fault_inside_a_message")
    events = (await read_responses(case)).data
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "the accelerator is on fire"}


# Keys and ids of objects


async def test_items_hold_no_keys_of_their_event() -> None:
    for case in CASES:
        if case.refused:
            continue
        for event in (await read_responses(case)).data:
            if "item" in event:
                assert not event["item"].keys() & {"output_index", "sequence_number", "item_id", "event"}


async def test_ids_have_the_prefix_of_their_type() -> None:
    prefixes = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}
    for case in CASES:
        if case.refused:
            continue
        response = (await read_responses(case)).data[-1]["response"]
        assert response["id"].startswith("resp_")
        for item in response["output"]:
            assert item["id"].startswith(prefixes[item["type"]])
            assert item.get("call_id", "call_").startswith("call_")


async def test_events_name_their_item_index_and_response() -> None:
    events, response = await run_output(["<think>\nHm.\n</think>\n\nWords. ", RUN_CALL])
    for event in events:
        is_item_event = any(
            marker in event["type"] for marker in ("output_item", "content_part", "_text.", "arguments")
        )
        assert not is_item_event or isinstance(event["output_index"], int)
        assert not ("content_part" in event["type"] or "_text." in event["type"]) or event["content_index"] == 0
        assert is_item_event or event["response"]["id"] == response["id"]


def test_usage_equals_the_token_counts_of_the_engine() -> None:
    reply = {"name": "x", "output": ["<think>Hm.</think>", "Yes."], "cached_tokens": 5}
    with serve([reply]) as server:
        usage = httpx.post(f"{server.url}/responses", json={"model": "scripted", "input": "hi"}).json()["usage"]
        stats = server.engine.stats()
    assert usage["input_tokens"] == stats.prompt_tokens and usage["output_tokens"] == stats.generated_tokens
    assert usage["input_tokens_details"]["cached_tokens"] == 5
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


# Contents of a request


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"moderation": {"model": "x"}}, "moderation"),
    ],
)
def test_unsupported_parameters_are_rejected_by_name(body: Json, param: str) -> None:
    with pytest.raises(ApiError) as error_info:
        read_responses_spec(**body)
    assert summarize_error(error_info.value) == (400, "unsupported_parameter", param)


def test_hosted_tool_types_are_accepted_and_unknown_types_rejected() -> None:
    hosted_types = [
        "web_search",
        "file_search",
        "code_interpreter",
        "tool_search",
        "image_generation",
    ]
    spec = read_responses_spec(tools=[*TOOLS, *({"type": tool_type} for tool_type in hosted_types)])
    assert [tool["type"] for tool in spec.base_response.tools][-len(hosted_types) :] == hosted_types
    assert {offer.name for offer in spec.prompt_input.tools} == {"get_weather", "run", "apply_patch", "spawn"}
    with pytest.raises(ApiError) as error_info:
        read_responses_spec(tools=[{"type": "telepathy"}])
    assert summarize_error(error_info.value) == (400, "invalid_value", "tools[0].type")


def test_reasoning_item_requires_only_its_type() -> None:
    for item in (
        {},
        {"id": "rs_1"},
        {"summary": []},
        {"summary": None, "content": None},
        {"encrypted_content": "sealed:x"},
    ):
        assert read_responses_spec(input=[{"type": "reasoning", **item}, {"role": "user", "content": "hi"}])


def test_format_is_accepted_only_under_text() -> None:
    with pytest.raises(ApiError) as error_info:
        read_responses_spec(text_format={"type": "json_object"})
    assert summarize_error(error_info.value) == (400, "unknown_parameter", "text_format")
    assert read_responses_spec(text={"format": {"type": "text"}}).base_response.text == {"format": {"type": "text"}}


def test_twenty_top_logprobs_are_accepted() -> None:
    assert read_responses_spec(top_logprobs=20).sampling.top_logprobs == 20
