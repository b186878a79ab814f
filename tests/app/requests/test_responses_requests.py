"""Responses requests: the contract's validation table, row by row, and the turn specs of valid requests."""

from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.responses.request import MAX_SUMMARY_TOKENS
from antiphon.app.turn_types.blob_urls import format_blob_url, refer_to
from antiphon.engine.protocol import Sampling
from antiphon.events.hosted_inputs import InputSearchAction, InputWebSearchCall
from antiphon.events.inputs import InputFunctionCall, InputImage, InputMessage, InputReasoning, InputText
from antiphon.events.items import FunctionCall, Message, OutputText
from tests.app.requests.request_builders import DEFAULT_SAMPLING, read_responses_spec, summarize_error

FUNCTION = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
USER = {"role": "user", "content": "hi"}


def text_part(kind: str = "input_text", content: Any = "x") -> dict[str, Any]:
    return {"type": kind, "text": content}


INVALID_REQUESTS: list[tuple[dict[str, Any], int, str | None, str | None]] = [
    ({"model": ...}, 400, "missing_required_parameter", "model"),
    ({"model": 5}, 400, "invalid_type", "model"),
    ({"model": "other"}, 404, "model_not_found", "model"),
    ({"input": ...}, 400, "missing_required_parameter", "input"),
    ({"input": []}, 400, "missing_required_parameter", "input"),
    ({"input": 5}, 400, "invalid_type", "input"),
    ({"input": {"role": "user"}}, 400, "invalid_type", "input"),
    ({"input": "x" * 10_485_761}, 400, "string_above_max_length", "input"),
    ({"input": ["hi"]}, 400, "invalid_type", "input[0]"),
    ({"input": [{}]}, 400, "missing_required_parameter", "input[0].type"),
    ({"input": [{"type": 5}]}, 400, "invalid_type", "input[0].type"),
    ({"input": [{"type": "telepathy"}]}, 400, "invalid_value", "input[0].type"),
    ({"input": [{"type": "hosted", "kind": "x", "payload": {}}]}, 400, "invalid_value", "input[0].type"),
    ({"input": [{"type": "message", "content": "x"}]}, 400, "missing_required_parameter", "input[0].role"),
    ({"input": [USER, {"role": "boss", "content": "x"}]}, 400, "invalid_value", "input[1].role"),
    ({"input": [{"role": "tool", "content": "x"}]}, 400, "invalid_value", "input[0].role"),
    ({"input": [{"role": "user"}]}, 400, "missing_required_parameter", "input[0].content"),
    ({"input": [{"role": "user", "content": 5}]}, 400, "invalid_type", "input[0].content"),
    ({"input": [{"role": "user", "content": [5]}]}, 400, "invalid_type", "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [text_part(), text_part("smell")]}]}, 400, "invalid_value", "input[0].content[1].type"),
    ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, 400, "missing_required_parameter", "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [text_part(content=5)]}]}, 400, "invalid_type", "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [text_part("output_text")]}]}, 400, "invalid_value", "input[0].content[0].type"),
    ({"input": [{"role": "assistant", "content": [text_part()]}]}, 400, "invalid_value", "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, 400, "unsupported_parameter", "input[0].content[0]"),
    ({"input": [{**CALL, "arguments": {}}, OUTPUT]}, 400, "invalid_type", "input[0].arguments"),
    ({"input": [{**CALL, "call_id": None}]}, 400, "missing_required_parameter", "input[0].call_id"),
    ({"input": [USER, OUTPUT]}, 400, None, "input"),
    ({"input": [OUTPUT, CALL]}, 400, None, "input"),
    ({"input": [USER, CALL]}, 400, None, "input"),
    ({"input": [{**CALL, "type": "custom_tool_call", "input": "x"}, OUTPUT]}, 400, None, "input"),
    ({"input": [{"type": "item_reference", "id": "msg_none"}]}, 404, None, "input"),
    ({"input": [{"type": "item_reference"}]}, 400, "missing_required_parameter", "input[0].id"),
    ({"input": [{"type": "compaction_trigger"}, USER]}, 400, "invalid_value", "input[0].type"),
    ({"previous_response_id": "abc"}, 400, "invalid_value", "previous_response_id"),
    ({"previous_response_id": "resp_1"}, 400, "previous_response_not_found", "previous_response_id"),
    ({"previous_response_id": "resp_1", "input": ...}, 400, "previous_response_not_found", "previous_response_id"),
    ({"conversation": "abc"}, 400, "invalid_value", "conversation"),
    ({"conversation": {"id": "conv_1", "x": 1}}, 400, "unknown_parameter", "conversation.x"),
    ({"conversation": "conv_1", "previous_response_id": "resp_1"}, 400, "mutually_exclusive_parameters", "previous_response_id"),
    ({"background": True, "store": False}, 400, "invalid_value", "background"),
    ({"temperature": -0.1}, 400, "decimal_below_min_value", "temperature"),
    ({"temperature": 2.1}, 400, "decimal_above_max_value", "temperature"),
    ({"temperature": True}, 400, "invalid_type", "temperature"),
    ({"temperature": "1"}, 400, "invalid_type", "temperature"),
    ({"temperature": int("9" * 400)}, 400, "decimal_above_max_value", "temperature"),
    ({"top_p": 1.01}, 400, "decimal_above_max_value", "top_p"),
    ({"presence_penalty": 3}, 400, "decimal_above_max_value", "presence_penalty"),
    ({"frequency_penalty": -3}, 400, "decimal_below_min_value", "frequency_penalty"),
    ({"top_logprobs": 21}, 400, "integer_above_max_value", "top_logprobs"),
    ({"top_logprobs": 1.0}, 400, "invalid_type", "top_logprobs"),
    ({"max_output_tokens": 0}, 400, "integer_below_min_value", "max_output_tokens"),
    ({"max_tool_calls": 0}, 400, "integer_below_min_value", "max_tool_calls"),
    ({"seed": 2**63}, 400, "integer_above_max_value", "seed"),
    ({"stop": [""]}, 400, "invalid_value", "stop"),
    ({"stop": ["x"] * 17}, 400, "array_above_max_length", "stop"),
    ({"logit_bias": {"x": 1}}, 400, "invalid_value", "logit_bias.x"),
    ({"logit_bias": {"5": 101}}, 400, "decimal_above_max_value", "logit_bias.5"),
    ({"metadata": {str(i): "x" for i in range(17)}}, 400, "object_above_max_properties", "metadata"),
    ({"metadata": {"k" * 65: "x"}}, 400, "string_above_max_length", f"metadata.{'k' * 65}"),
    ({"metadata": {"k": "x" * 513}}, 400, "string_above_max_length", "metadata.k"),
    ({"metadata": {"k": 1}}, 400, "invalid_type", "metadata.k"),
    ({"safety_identifier": "x" * 129}, 400, "string_above_max_length", "safety_identifier"),
    ({"prompt_cache_key": "x" * 65}, 400, "string_above_max_length", "prompt_cache_key"),
    ({"truncation": "some"}, 400, "invalid_value", "truncation"),
    ({"service_tier": "gold"}, 400, "invalid_value", "service_tier"),
    ({"include": ["reasoning.encrypted_content", "all"]}, 400, "invalid_value", "include[1]"),
    ({"reasoning": {"effort": "huge"}}, 400, "invalid_value", "reasoning.effort"),
    ({"reasoning": {"summary": "long"}}, 400, "invalid_value", "reasoning.summary"),
    ({"reasoning": {"depth": 1}}, 400, "unknown_parameter", "reasoning.depth"),
    ({"text": {"format": {"type": "xml"}}}, 400, "invalid_value", "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, 400, "invalid_value", "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "a" * 65, "schema": {}}}}, 400, "invalid_value", "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, 400, "missing_required_parameter", "text.format.name"),
    ({"text": {"verbosity": "loud"}}, 400, "invalid_value", "text.verbosity"),
    ({"tools": [{"name": "x"}]}, 400, "missing_required_parameter", "tools[0].type"),
    ({"tools": [{"type": "magic"}]}, 400, "invalid_value", "tools[0].type"),
    ({"tools": [FUNCTION, {"type": "function"}]}, 400, "missing_required_parameter", "tools[1].name"),
    ({"tools": [{**FUNCTION, "name": "a b"}]}, 400, "invalid_value", "tools[0].name"),
    ({"tools": [{**FUNCTION, "name": "a\n"}]}, 400, "invalid_value", "tools[0].name"),
    ({"tools": [{**FUNCTION, "name": "a" * 129}]}, 400, "invalid_value", "tools[0].name"),
    ({"tools": [FUNCTION, FUNCTION]}, 400, "invalid_value", "tools[1].name"),
    ({"tools": [{**FUNCTION, "parameters": []}]}, 400, "invalid_type", "tools[0].parameters"),
    ({"tools": [{**FUNCTION, "parameters": {"type": "string"}}]}, 400, "invalid_function_parameters", "tools[0].parameters"),
    ({"tools": [{**FUNCTION, "name": f"t{i}"} for i in range(129)]}, 400, "array_above_max_length", "tools"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]}, 400, "invalid_value", "tools[0].tools[0].type"),
    ({"tools": [{"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "peg", "definition": ""}}]}, 400, "invalid_value", "tools[0].format.syntax"),
    ({"tool_choice": "sometimes"}, 400, "invalid_value", "tool_choice"),
    ({"tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "nope"}, "tools": [FUNCTION]}, 400, "invalid_value", "tool_choice"),
    ({"tool_choice": {"type": "custom", "name": "weather"}, "tools": [FUNCTION]}, 400, "invalid_value", "tool_choice"),
    ({"tool_choice": {"type": "file_search"}, "tools": [FUNCTION]}, 400, None, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "tools": [FUNCTION]}, "tools": [FUNCTION]}, 400, "missing_required_parameter", "tool_choice.mode"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "none", "tools": [FUNCTION]}, "tools": [FUNCTION]}, 400, "invalid_value", "tool_choice.mode"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{**FUNCTION, "name": "x"}]}, "tools": [FUNCTION]}, 400, "invalid_value", "tool_choice"),
    ({"stream_options": {"include_obfuscation": False}}, 400, "invalid_value", "stream_options"),
    ({"stream": True, "stream_options": {"include_obfuscation": "yes"}}, 400, "invalid_type", "stream_options.include_obfuscation"),
    ({"stream": "yes"}, 400, "invalid_type", "stream"),
    ({"client_metadata": {"a": 1}}, 400, "invalid_type", "client_metadata.a"),
    # Invalid values are reported before unsupported ones.
    ({"background": True, "temperature": 3}, 400, "decimal_above_max_value", "temperature"),
    ({"background": True, "input": [{"role": "boss"}]}, 400, "invalid_value", "input[0].role"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "code", "param"), INVALID_REQUESTS)
def test_invalid_request_names_its_field(
    body: dict[str, Any], status: int, code: str | None, param: str | None
) -> None:
    with pytest.raises(ApiError) as caught:
        read_responses_spec(**body)
    assert summarize_error(caught.value) == (status, code, param)
    assert caught.value.type == "invalid_request_error"


def test_unpaired_calls_have_the_messages_of_the_openai_api() -> None:
    with pytest.raises(ApiError, match=r"No tool call found for function call output with call_id c1\."):
        read_responses_spec(input=[USER, OUTPUT])
    with pytest.raises(ApiError, match=r"No tool output found for function call c1\."):
        read_responses_spec(input=[USER, CALL])


@pytest.mark.parametrize("answered", ["c1", "c2"])
@pytest.mark.parametrize("kind", ["function", "custom tool"])
def test_output_answers_only_the_call_that_it_names(answered: str, kind: str) -> None:
    other = {"c1": "c2", "c2": "c1"}[answered]
    if kind == "function":
        calls, output = [{**CALL, "call_id": call_id} for call_id in ("c1", "c2")], {**OUTPUT, "call_id": answered}
    else:
        calls = [
            {"type": "custom_tool_call", "call_id": call_id, "name": "run", "input": "x"} for call_id in ("c1", "c2")
        ]
        output = {"type": "custom_tool_call_output", "call_id": answered, "output": "done"}
    with pytest.raises(ApiError, match=rf"No tool output found for {kind} call {other}\."):
        read_responses_spec(input=[USER, *calls, output])


def test_output_does_not_answer_a_call_of_another_kind() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": "x"}
    with pytest.raises(ApiError, match=r"No tool output found for custom tool call c1\."):
        read_responses_spec(input=[USER, CALL, custom, OUTPUT])


def test_minimal_request_gets_defaults() -> None:
    spec = read_responses_spec()
    assert spec.prompt_input.items == (InputMessage(role="user", content="hi"),)
    assert spec.sampling == DEFAULT_SAMPLING
    response = spec.base_response
    assert (response.model, response.temperature, response.top_p, response.store, response.background) == (
        "tiny",
        0.6,
        0.95,
        True,
        False,
    )
    assert (response.text, response.tool_choice, response.truncation) == (
        {"format": {"type": "text"}},
        "auto",
        "disabled",
    )
    assert (response.service_tier, response.metadata, response.tools) == ("default", {}, ())
    assert response.reasoning is not None
    assert not spec.logprobs
    assert spec.max_tool_calls is None


def test_empty_string_is_an_empty_message() -> None:
    """Codex sends this request as a probe to LM Studio."""
    spec = read_responses_spec(input="", max_output_tokens=1)
    assert spec.prompt_input.items == (InputMessage(role="user", content=""),)
    assert (spec.sampling.max_tokens, spec.base_response.max_output_tokens) == (1, 1)


def test_client_values_override_the_models_defaults() -> None:
    spec = read_responses_spec(
        temperature=0, top_p=1, top_k=-1, min_p=0.1, seed=7, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.1, logit_bias={"5": -100}, stop="END", max_output_tokens=9,
    )  # fmt: skip
    assert spec.sampling == Sampling(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.1, seed=7, presence_penalty=1.0, frequency_penalty=-1.0,
        repetition_penalty=1.1, logit_bias={5: -100.0}, max_tokens=9,
    )  # fmt: skip
    assert spec.stop_strings == ("END",)
    assert (spec.base_response.temperature, spec.base_response.top_p, spec.base_response.presence_penalty) == (
        0.0,
        1.0,
        1.0,
    )


@pytest.mark.parametrize(
    ("body", "num_logprobs"),
    [
        ({}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"top_logprobs": 3}, 3),
        ({"top_logprobs": 0}, None),
        ({"top_logprobs": 2, "include": ["message.output_text.logprobs"]}, 2),
    ],
)
def test_logprobs_are_returned_where_requested(body: dict[str, Any], num_logprobs: int | None) -> None:
    spec = read_responses_spec(**body)
    assert (spec.sampling.top_logprobs, spec.logprobs) == (num_logprobs, num_logprobs is not None)


def test_compaction_has_a_limit_of_tokens() -> None:
    """A model that does not end would keep its client waiting without a byte."""
    trigger = {"input": [USER, {"type": "compaction_trigger"}]}
    assert read_responses_spec(**trigger).sampling.max_tokens == MAX_SUMMARY_TOKENS
    assert read_responses_spec(**trigger).base_response.max_output_tokens is None
    assert read_responses_spec(**trigger, max_output_tokens=7).sampling.max_tokens == 7
    assert read_responses_spec(input=[USER]).sampling.max_tokens is None


def test_max_tool_calls_is_independent_of_parallel_tool_calls() -> None:
    spec = read_responses_spec(parallel_tool_calls=False, max_tool_calls=5)
    assert (spec.max_tool_calls, spec.single_call) == (5, True)
    spec = read_responses_spec(max_tool_calls=5)
    assert (spec.max_tool_calls, spec.single_call) == (5, False)


def test_tools_are_echoed_and_only_client_tools_are_offered() -> None:
    patch = {
        "type": "custom",
        "name": "apply_patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
    }
    agents = {"type": "namespace", "name": "agents", "tools": [{**FUNCTION, "name": "spawn"}]}
    spec = read_responses_spec(tools=[FUNCTION, patch, agents, {"type": "web_search", "external_web_access": True}])
    echoed = spec.base_response.tools
    assert echoed[0] == {**FUNCTION, "description": None, "strict": None}
    assert echoed[1:] == (patch, agents, {"type": "web_search", "external_web_access": True})
    offered = [(offer.namespace, offer.name, offer.kind) for offer in spec.prompt_input.tools]
    assert offered == [(None, "weather", "function"), (None, "apply_patch", "custom"), ("agents", "spawn", "function")]


def test_additional_tools_item_offers_tools() -> None:
    spec = read_responses_spec(input=[{"type": "additional_tools", "role": "developer", "tools": [FUNCTION]}, USER])
    assert [offer.name for offer in spec.prompt_input.tools] == ["weather"]
    assert spec.base_response.tools == ()
    with pytest.raises(ApiError) as caught:
        read_responses_spec(tools=[FUNCTION], input=[{"type": "additional_tools", "tools": [FUNCTION]}, USER])
    assert caught.value.param == "input[0].tools[0].name"


def test_output_items_are_accepted_as_input() -> None:
    """Items have null for optional keys, keys that the SDK adds, ids of other servers, and messages without a type."""
    spec = read_responses_spec(
        input=[
            {"role": "system", "content": "be brief"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None, "content": None, "status": None},
            {**CALL, "id": None, "status": None, "namespace": None, "async_": None, "caller": None, "parsed_arguments": {}},
            {**OUTPUT, "id": "fco_9", "output": [text_part(content="sunny")]},
            {
                "type": "message", "id": "msg_x", "role": "assistant", "status": "completed", "phase": "final_answer",
                "content": [{**text_part("output_text"), "annotations": [], "logprobs": []}],
            },
            {"role": "assistant", "content": "plain"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
            {"role": "user", "content": [text_part(), {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "high"}]},
        ]
    )  # fmt: skip
    items = spec.prompt_input.items
    assert isinstance(items[1], InputReasoning)
    assert items[2] == InputFunctionCall(call_id="c1", name="weather", arguments="{}")
    assert items[6] == InputWebSearchCall(id="ws_1", status="completed", action=InputSearchAction())
    assert isinstance(items[7], InputMessage)
    assert items[7].content == (
        InputText(text="x"),
        InputImage(image_url=format_blob_url(refer_to(bytes(3), "image/png")), detail="high"),
    )


def test_item_references_are_replaced_by_their_items() -> None:
    message = Message(id="msg_1", status="completed", content=(OutputText(text="hello"),))
    call = FunctionCall(id="fc_1", call_id="c1", name="weather", arguments="{}", status="completed")
    spec = read_responses_spec(
        {"msg_1": message, "fc_1": call},
        input=[USER, {"type": "item_reference", "id": "msg_1"}, {"id": "fc_1"}, OUTPUT],
    )
    kinds = [type(item).__name__ for item in spec.prompt_input.items]
    assert kinds == ["InputMessage", "InputMessage", "InputFunctionCall", "InputFunctionOutput"]


def test_codex_request_is_accepted() -> None:
    spec = read_responses_spec(
        stream=True, store=False, tool_choice="auto", parallel_tool_calls=True,
        reasoning={"effort": "low", "summary": "auto", "context": "all_turns"},
        include=["reasoning.encrypted_content"], prompt_cache_key="0199-aa",
        client_metadata={"session_id": "s", "x-codex-turn-metadata": "{}" * 400}, text={"verbosity": "low"},
        service_tier="flex",
        input=[{"type": "message", "id": "msg_1", "role": "developer", "content": [text_part(content="d" * 17_000)]}, USER],
        tools=[{**FUNCTION, "strict": False}, {"type": "tool_search", "execution": "client", "parameters": {}}],
    )  # fmt: skip
    assert (spec.base_response.store, spec.prompt_input.effort) == (False, "low")
    assert spec.base_response.text == {"format": {"type": "text"}, "verbosity": "low"}
    assert (spec.base_response.service_tier, spec.base_response.prompt_cache_key) == ("flex", "0199-aa")
    assert not spec.logprobs
