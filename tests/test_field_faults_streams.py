"""Faults that streams of other servers have, each replayed here: the same input comes out right."""

import json
from typing import Any

import httpx
import pytest

from antiphon.app.errors import ApiError
from tests.app.requests.request_builders import ask, blame
from tests.invariants import check
from tests.serving import scripted_registry, serve
from tests.snapshots.cases import CASES, RUN_CALL, TOOLS, WEATHER_CALL, Case
from tests.snapshots.run_case import read_chat, read_responses

Json = dict[str, Any]
EMPTY_CALLS = [
    ("hermes", '<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "run"}\n</tool_call>'),
    ("qwen3-coder", "<tool_call>\n<function=run>\n</function>\n</tool_call>"),
    ("gpt-oss", "<|channel|>commentary to=functions.run <|constrain|>json<|message|>{}<|call|>"),
    ("gpt-oss", "<|channel|>commentary to=functions.run <|constrain|>json<|message|><|call|>"),
]
LIMITED = [case for case in CASES if case.finish == "length" and "blanks" not in case.name]
TEXTS = {
    "hermes": "Some words",
    "qwen3-coder": "Some words",
    "gpt-oss": "<|channel|>final<|message|>Some words",
}


async def told(speak: list[Any] | str, dialect: str = "hermes", **more: Any) -> tuple[list[Json], Json]:
    """The events of one answer through `/v1/responses`, checked, and the response they end in."""
    spoken = [speak] if isinstance(speak, str) else speak
    reading = await read_responses(Case("case", spoken, dialect=dialect, **more))
    response = check(reading.data)
    assert not isinstance(reading.whole, ApiError) and json.loads(reading.whole) == response
    return reading.data, response


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def of(events: list[Json], kind: str) -> list[Json]:
    return [event for event in events if event["type"] == f"response.{kind}"]


# What is in a stream


@pytest.mark.parametrize("step", [0, 1, 3])
async def test_a_turn_of_one_call_has_that_item_and_no_other_at_index_0(step: int) -> None:
    events, response = await told(RUN_CALL, step=step)
    assert kinds(response) == ["function_call"]
    assert {event["output_index"] for event in events if "output_index" in event} == {0}
    assert of(events, "function_call_arguments.delta")


@pytest.mark.parametrize("step", [0, 1])
async def test_text_before_a_call_is_said_and_done_once(step: int) -> None:
    events, response = await told(["Words first.\n\n", RUN_CALL], step=step)
    assert kinds(response) == ["message", "function_call"]
    assert [event["text"] for event in of(events, "output_text.done")] == ["Words first."]
    assert len({item["id"] for item in response["output"]}) == 2


async def test_reasoning_after_text_is_an_item_of_its_own_with_an_index_of_its_own() -> None:
    speak = ["<think>\nOne.\n</think>\n\n", WEATHER_CALL, "\n<think>\nTwo.\n</think>\n\n", "Words."]
    events, response = await told(speak, step=1)
    assert kinds(response) == ["reasoning", "function_call", "reasoning", "message"]
    assert len({item["id"] for item in response["output"]}) == 4
    assert [event["output_index"] for event in of(events, "output_item.added")] == [0, 1, 2, 3]


@pytest.mark.parametrize("case", [case for case in CASES if case.dialect == "gpt-oss"], ids=lambda case: case.name)
async def test_in_gpt_oss_too_added_delta_and_done_agree_on_their_place(case: Case) -> None:
    for step in (0, 1):
        events, response = await told(case.speak, case.dialect, step=step)
        for number, item in enumerate(response["output"]):
            places = {event["output_index"] for event in events if event.get("item_id") == item["id"]}
            places |= {e["output_index"] for e in events if "item" in e and e["item"]["id"] == item["id"]}
            assert places == {number}
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        assert len(of(events, "function_call_arguments.done")) == len(calls)


async def test_reasoning_is_told_in_events_of_its_own() -> None:
    events, response = await told("<think>\nA secret.\n</think>\n\nWords.")
    assert [event["delta"] for event in of(events, "output_text.delta")] == ["Words."]
    assert "".join(event["delta"] for event in of(events, "reasoning_text.delta")) == "A secret."
    assert "secret" not in json.dumps(response["output"][1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_whatever_was_opened_in_a_turn_that_ended_well_was_closed(case: Case) -> None:
    if case.refused:
        return
    events = (await read_responses(case)).data
    if events[-1]["type"] == "response.completed":
        for opened, closed in [
            ("output_item.added", "output_item.done"),
            ("content_part.added", "content_part.done"),
        ]:
            assert len(of(events, opened)) == len(of(events, closed))
        messages = [item for item in events[-1]["response"]["output"] if item["type"] == "message"]
        assert len(of(events, "output_text.done")) == len(messages)


@pytest.mark.parametrize("dialect", TEXTS)
def test_text_streams_as_it_comes_though_tools_are_declared(dialect: str) -> None:
    """Nothing is held back to learn what follows: the text is out while the model is silent."""
    catalogue = scripted_registry([{"name": "x", "output": [TEXTS[dialect], {"stall": True}]}], dialect=dialect)
    body = {"model": "scripted", "input": "hi", "tools": TOOLS, "stream": True}
    with serve(catalogue) as served, httpx.stream("POST", f"{served.url}/responses", json=body, timeout=10) as reply:
        read = ""
        for piece in reply.iter_text():
            read += piece
            if '"delta":"words"' in read or '"delta":" words"' in read or '"delta":"s"' in read:
                break
        assert "response.completed" not in read


async def test_the_json_of_arguments_is_not_written_anew() -> None:
    odd = '{"cmd":  "caf\\u00e9 é", "b" : 1.50,\n"b": [ ]}'
    for step in (0, 1):
        events, response = await told(f'<tool_call>\n{{"name": "run", "arguments": {odd}}}\n</tool_call>', step=step)
        assert response["output"][0]["arguments"] == odd
        assert "".join(event["delta"] for event in of(events, "function_call_arguments.delta")) == odd


# Several tokens at once, and boundaries inside of what comes at once


@pytest.mark.parametrize("case", [case for case in CASES if not case.refused and not case.cancel], ids=lambda c: c.name)
async def test_a_step_of_many_tokens_tells_the_same_in_the_same_order(case: Case) -> None:
    if any(not isinstance(piece, str) for piece in case.speak):
        return
    outputs = []
    for speak, step in ((case.speak, 1), (["".join(case.speak)], 0), (["".join(case.speak)], 5)):
        reading = await read_responses(
            Case("case", speak, "", case.dialect, case.finish, step, case.request, case.responses)
        )
        outputs.append(_without_ids(check(reading.data)["output"]))
    assert outputs[0] == outputs[1] == outputs[2]


def _without_ids(output: list[Json]) -> list[Json]:
    for item in output:
        for part in item.get("content", []):
            part.pop("logprobs", None)
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in output]


async def test_reasoning_text_and_calls_in_one_chunk_keep_their_order() -> None:
    speak = "<think>\nA.\n</think>\n\nB.\n" + WEATHER_CALL + RUN_CALL
    _, response = await told(speak, step=0)
    assert kinds(response) == ["reasoning", "message", "function_call", "function_call"]


# Calls


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(("dialect", "speak"), EMPTY_CALLS)
async def test_a_call_without_arguments_is_a_call_with_an_empty_object(dialect: str, speak: str, step: int) -> None:
    events, response = await told(speak, dialect, step=step)
    (item,) = response["output"]
    assert (item["name"], item["arguments"], item["status"]) == ("run", "{}", "completed")
    assert list(dict.fromkeys(event["type"].removeprefix("response.") for event in events[2:-1])) == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]


async def test_arguments_written_in_tags_stream_while_they_are_written() -> None:
    speak = (
        "<tool_call>\n<function=run>\n<parameter=cmd>\necho one two three four\n</parameter>\n</function>\n</tool_call>"
    )
    events, response = await told(speak, "qwen3-coder", step=1)
    deltas = [event["delta"] for event in of(events, "function_call_arguments.delta")]
    assert len(deltas) > 10 and max(map(len, deltas)) < 20, "not one blob at the end"
    assert json.loads(response["output"][0]["arguments"]) == {"cmd": "echo one two three four"}


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("opener", ["<tool_call>", "<tool_call>\n", '<tool_call>\n{"name"', '<tool_call>\n{"na'])
async def test_an_opener_that_nothing_follows_is_text_streamed_or_not(opener: str, finish: str) -> None:
    for step in (0, 1):
        _, response = await told(["Words ", opener], finish=finish, step=step)
        assert kinds(response) == ["message"]
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
async def test_no_marker_of_a_header_gets_into_a_name_or_into_arguments(header: str) -> None:
    _, response = await told(header + '{"cmd": "ls"}<|call|>', "gpt-oss", step=1)
    assert [(item["name"], item["arguments"]) for item in response["output"]] == [("run", '{"cmd": "ls"}')]


@pytest.mark.parametrize("name", ["python", "browser.search", "functions.launch"])
async def test_a_model_that_calls_what_nobody_offered_is_read_as_text(name: str) -> None:
    speak = f"<|channel|>commentary to={name} code<|message|>print(1)<|call|>"
    _, response = await told(speak, "gpt-oss", responses={"tools": []})
    assert "function_call" not in kinds(response) and response["status"] == "completed"
    assert "print(1)" in json.dumps(response["output"])


@pytest.mark.parametrize("dialect", ["hermes", "qwen3-coder", "gpt-oss"])
async def test_under_tool_choice_none_no_dialect_calls(dialect: str) -> None:
    speak = {
        "hermes": RUN_CALL,
        "qwen3-coder": "<tool_call>\n<function=run>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>",
        "gpt-oss": '<|channel|>commentary to=functions.run <|constrain|>json<|message|>{"cmd": "ls"}<|call|>',
    }[dialect]
    _, response = await told(speak, dialect, request={"tool_choice": "none"})
    assert kinds(response) == ["message"] and "ls" in response["output"][0]["content"][0]["text"]


async def test_text_and_calls_side_by_side_are_both_whole() -> None:
    _, response = await told(["A long text before. ", RUN_CALL, " And a text after.", "\n", WEATHER_CALL], step=1)
    assert kinds(response) == ["message", "function_call", "message", "function_call"]
    texts = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]
    assert [text.strip() for text in texts] == ["A long text before.", "And a text after."]


# Blanks and nothings


@pytest.mark.parametrize(
    "speak", ["<think>\n\n</think>\n\nWords.", "<think></think>Words.", "<think>\n</think>\n\nWords."]
)
async def test_reasoning_without_a_word_is_no_item(speak: str) -> None:
    for step in (0, 1):
        events, response = await told(speak, step=step)
        assert kinds(response) == ["message"] and not of(events, "reasoning_text.delta")


async def test_line_feeds_around_calls_are_no_messages() -> None:
    _, response = await told(["<think>\nHm.\n</think>\n\n\n", RUN_CALL, "\n\n", WEATHER_CALL, "\n"], step=1)
    assert kinds(response) == ["reasoning", "function_call", "function_call"]


@pytest.mark.parametrize("dialect", ["hermes", "gpt-oss"])
async def test_a_message_without_a_word_is_no_item(dialect: str) -> None:
    speak = {"hermes": "\n", "gpt-oss": "<|channel|>final<|message|><|return|>"}[dialect]
    _, response = await told(speak, dialect)
    assert response["output"] == [] and response["status"] == "completed"


# How it ends


@pytest.mark.parametrize("case", LIMITED, ids=lambda case: case.name)
async def test_what_the_limit_cut_says_so_in_its_events_and_in_its_items(case: Case) -> None:
    events, response = await told(case.speak, case.dialect, finish="length")
    assert events[-1]["type"] == "response.incomplete"
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"
    assert all(item.get("status") == "completed" for item in response["output"][:-1])


async def test_the_reason_for_the_end_is_told_on_both_faces() -> None:
    case = next(case for case in CASES if case.name == "token_limit_inside_a_message")
    first, second = await read_responses(case), await read_chat(case)
    assert first.data[-1]["response"]["incomplete_details"]["reason"] == "max_output_tokens"
    assert [chunk["choices"][0]["finish_reason"] for chunk in second.data if chunk["choices"]][-1] == "length"


async def test_a_cancelled_turn_is_never_told_as_completed() -> None:
    case = next(case for case in CASES if case.name == "cancelled_inside_a_message")
    events = (await read_responses(case)).data
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")


async def test_a_failed_turn_has_its_own_event_its_own_status_and_its_error() -> None:
    case = next(case for case in CASES if case.name == "engine_fault_inside_a_message")
    events = (await read_responses(case)).data
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "the accelerator is on fire"}


# What is in an object


async def test_an_item_holds_its_own_keys_and_none_of_its_event() -> None:
    for case in CASES:
        if case.refused:
            continue
        for event in (await read_responses(case)).data:
            if "item" in event:
                assert not event["item"].keys() & {"output_index", "sequence_number", "item_id", "event"}


async def test_ids_say_what_they_are_of() -> None:
    prefixes = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}
    for case in CASES:
        if case.refused:
            continue
        response = (await read_responses(case)).data[-1]["response"]
        assert response["id"].startswith("resp_")
        for item in response["output"]:
            assert item["id"].startswith(prefixes[item["type"]])
            assert item.get("call_id", "call_").startswith("call_")


async def test_every_event_names_its_item_its_place_and_its_response() -> None:
    events, response = await told(["<think>\nHm.\n</think>\n\nWords. ", RUN_CALL])
    for event in events:
        inside = any(word in event["type"] for word in ("output_item", "content_part", "_text.", "arguments"))
        assert not inside or isinstance(event["output_index"], int)
        assert not ("content_part" in event["type"] or "_text." in event["type"]) or event["content_index"] == 0
        assert inside or event["response"]["id"] == response["id"]


def test_usage_counts_the_prompt_once_and_what_the_engine_said() -> None:
    reply = {"name": "x", "output": ["<think>Hm.</think>", "Yes."], "cached_tokens": 5}
    with serve([reply]) as served:
        usage = httpx.post(f"{served.url}/responses", json={"model": "scripted", "input": "hi"}).json()["usage"]
        stats = served.engine.stats()
    assert usage["input_tokens"] == stats.prompt_tokens and usage["output_tokens"] == stats.generated_tokens
    assert usage["input_tokens_details"]["cached_tokens"] == 5
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


# What a request may hold


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"moderation": {"model": "x"}}, "moderation"),
    ],
)
def test_what_is_not_served_yet_is_refused_by_name_and_never_half_done(body: Json, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        ask(**body)
    assert blame(caught.value) == (400, "unsupported_parameter", param)


def test_tools_of_kinds_that_run_elsewhere_are_accepted_and_never_a_server_error() -> None:
    elsewhere = [
        "web_search",
        "file_search",
        "code_interpreter",
        "tool_search",
        "local_shell",
        "mcp",
        "image_generation",
    ]
    spec = ask(tools=[*TOOLS, *({"type": kind} for kind in elsewhere)])
    assert [tool["type"] for tool in spec.base_response.tools][-len(elsewhere) :] == elsewhere
    assert {offer.name for offer in spec.prompt_input.tools} == {"get_weather", "run", "apply_patch", "spawn"}
    with pytest.raises(ApiError) as caught:
        ask(tools=[{"type": "telepathy"}])
    assert blame(caught.value) == (400, "invalid_value", "tools[0].type")


def test_a_reasoning_item_needs_nothing_but_its_type() -> None:
    for item in (
        {},
        {"id": "rs_1"},
        {"summary": []},
        {"summary": None, "content": None},
        {"encrypted_content": "sealed:x"},
    ):
        assert ask(input=[{"type": "reasoning", **item}, {"role": "user", "content": "hi"}])


def test_a_format_is_read_where_the_api_has_it_and_nowhere_else() -> None:
    with pytest.raises(ApiError) as caught:
        ask(text_format={"type": "json_object"})
    assert blame(caught.value) == (400, "unknown_parameter", "text_format")
    assert ask(text={"format": {"type": "text"}}).base_response.text == {"format": {"type": "text"}}


def test_log_probabilities_of_up_to_twenty_tokens_are_served() -> None:
    assert ask(top_logprobs=20).sampling.top_logprobs == 20
