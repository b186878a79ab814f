"""Chat requests: validation, messages as input items, and fields that only Chat Completions has."""

from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.turn_types.blob_urls import format_blob_url, refer_to
from antiphon.events.inputs import (
    InputCustomCall,
    InputCustomOutput,
    InputFile,
    InputFunctionCall,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputReasoning,
    InputText,
    OutputTextInput,
    RefusalInput,
)
from antiphon.events.items import ReasoningText
from antiphon.harmony.grammar import OutputConstraint
from tests.app.requests.request_builders import read_chat, read_chat_spec, summarize_error

FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CALL_MESSAGE = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
TOOL_MESSAGE = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
USER_MESSAGE = {"role": "user", "content": "hi"}
IMAGE_BLOB = format_blob_url(refer_to(bytes(3), "image/png"))
FILE_BLOB = format_blob_url(refer_to(b"A", ""))

INVALID_REQUESTS: list[tuple[dict[str, Any], int, str | None, str | None]] = [
    ({"model": ...}, 400, "missing_required_parameter", "model"),
    ({"model": "other"}, 404, "model_not_found", "model"),
    ({"messages": ...}, 400, "missing_required_parameter", "messages"),
    ({"messages": "hi"}, 400, "invalid_type", "messages"),
    ({"messages": []}, 400, "empty_array", "messages"),
    ({"messages": ["hi"]}, 400, "invalid_type", "messages[0]"),
    ({"messages": [{"content": "hi"}]}, 400, "missing_required_parameter", "messages[0].role"),
    ({"messages": [{"role": "boss", "content": "hi"}]}, 400, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, 400, "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "invalid_type", "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, 400, "invalid_type", "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, 400, "invalid_value", "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, 400, "unsupported_parameter", "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, 400, "missing_required_parameter", "messages[0].content[0].image_url.url"),
    ({"messages": [USER_MESSAGE, {"role": "assistant"}]}, 400, "missing_required_parameter", "messages[1].content"),
    ({"messages": [USER_MESSAGE, {"role": "assistant", "function_call": {}}]}, 400, "missing_required_parameter", "messages[1].function_call.name"),
    ({"messages": [{"role": "function", "name": "x", "content": "y"}]}, 400, None, "messages"),
    ({"messages": [{"role": "function", "content": "y"}]}, 400, "missing_required_parameter", "messages[0].name"),
    ({"functions": [{"name": "f" * 65}]}, 400, "invalid_value", "functions[0].name"),
    ({"tools": [FUNCTION, {"type": "custom", "custom": {"name": "f" * 65}}]}, 400, "invalid_value", "tools[1].custom.name"),
    ({"functions": [{}]}, 400, "missing_required_parameter", "functions[0].name"),
    ({"functions": [{"name": "f"}], "tools": [FUNCTION]}, 400, "invalid_value", "functions"),
    ({"function_call": "auto"}, 400, "invalid_value", "function_call"),
    ({"function_call": "required", "functions": [{"name": "f"}]}, 400, "invalid_value", "function_call"),
    ({"function_call": {"name": "g"}, "functions": [{"name": "f"}]}, 400, "invalid_value", "function_call"),
    ({"messages": [USER_MESSAGE, CALL_MESSAGE]}, 400, None, "messages"),
    ({"messages": [USER_MESSAGE, TOOL_MESSAGE]}, 400, None, "messages"),
    ({"messages": [USER_MESSAGE, CALL_MESSAGE, TOOL_MESSAGE, TOOL_MESSAGE]}, 400, None, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, 400, "missing_required_parameter", "messages[0].tool_call_id"),
    ({"messages": [{**CALL_MESSAGE, "tool_calls": [{"id": "c1"}]}]}, 400, "missing_required_parameter", "messages[0].tool_calls[0].function"),
    ({"messages": [{**CALL_MESSAGE, "tool_calls": [{**TOOL_CALL, "function": {"name": "x", "arguments": {}}}]}]}, 400, "invalid_type", "messages[0].tool_calls[0].function.arguments"),
    ({"n": 0}, 400, "integer_below_min_value", "n"),
    ({"n": 129}, 400, "integer_above_max_value", "n"),
    ({"n": "1"}, 400, "invalid_type", "n"),
    ({"n": True}, 400, "invalid_type", "n"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, 400, "invalid_value", "max_tokens"),
    ({"max_completion_tokens": 0}, 400, "integer_below_min_value", "max_completion_tokens"),
    ({"top_logprobs": 3}, 400, "invalid_value", "top_logprobs"),
    ({"response_format": {"type": "text", "schema": {}}}, 400, "unknown_parameter", "response_format.schema"),
    ({"response_format": {"type": "json_object", "strict": True}}, 400, "unknown_parameter", "response_format.strict"),
    ({"response_format": {"type": "json_object", "schema": 5}}, 400, "invalid_type", "response_format.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "extra": 1}}}, 400, "unknown_parameter", "response_format.json_schema.extra"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}, "strict": True}}, 400, "unknown_parameter", "response_format.strict"),
    ({"logit_bias": {"256": 1}}, 400, "invalid_value", "logit_bias"),
    ({"frobnicate": 1}, 400, "unknown_parameter", "frobnicate"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, 400, "missing_required_parameter", "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema"}}, 400, "missing_required_parameter", "response_format.json_schema"),
    ({"response_format": {}}, 400, "missing_required_parameter", "response_format.type"),
    ({"modalities": ["text", "audio"]}, 400, "unsupported_parameter", "modalities"),
    ({"stream_options": {"include_usage": True}}, 400, "invalid_value", "stream_options"),
    ({"tools": [{"type": "function"}]}, 400, "missing_required_parameter", "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, 400, "missing_required_parameter", "tools[0].function.name"),
    ({"tools": [FUNCTION, FUNCTION]}, 400, "invalid_value", "tools[1].function.name"),
    ({"tools": [{"type": "web_search"}]}, 400, "invalid_value", "tools[0].type"),
    ({"tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": [FUNCTION]}, 400, "invalid_value", "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "tools": [FUNCTION]}, 400, "invalid_value", "tool_choice.tools"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "code", "param"), INVALID_REQUESTS)
def test_invalid_request_names_its_field(
    body: dict[str, Any], status: int, code: str | None, param: str | None
) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat_spec(**body)
    assert summarize_error(caught.value) == (status, code, param)


def test_every_role_and_part_becomes_an_item() -> None:
    spec = read_chat_spec(
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "developer", "content": [{"type": "text", "text": "always"}]},
            {
                "role": "user",
                "name": "ann",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
                    {"type": "file", "file": {"filename": "a.pdf", "file_data": "QQ=="}},
                ],
            },
            {"role": "assistant", "content": "I see.", "refusal": None, "annotations": [], "reasoning_content": "hm"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]
    )
    assert spec.prompt_input.items == (
        InputMessage(role="system", content="be brief"),
        InputMessage(role="developer", content=(InputText(text="always"),)),
        InputMessage(
            role="user",
            content=(
                InputText(text="ann: "),
                InputText(text="look"),
                InputImage(image_url=IMAGE_BLOB, detail="low"),
                InputFile(filename="a.pdf", file_data=FILE_BLOB),
            ),
        ),
        InputReasoning(content=(ReasoningText(text="hm"),)),
        InputMessage(role="assistant", content=(OutputTextInput(text="I see."),)),
        InputMessage(role="assistant", content=(RefusalInput(refusal="no"),)),
    )


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ({"content": None, "refusal": "I cannot."}, (RefusalInput(refusal="I cannot."),)),
        ({"refusal": "I cannot."}, (RefusalInput(refusal="I cannot."),)),
        ({"content": "No.", "refusal": "I cannot."}, (OutputTextInput(text="No."), RefusalInput(refusal="I cannot."))),
    ],
)
def test_refusal_of_the_assistant_is_part_of_the_history(message: dict[str, Any], parts: tuple[Any, ...]) -> None:
    spec = read_chat_spec(messages=[USER_MESSAGE, {"role": "assistant", **message}, USER_MESSAGE])
    assert spec.prompt_input.items[1] == InputMessage(role="assistant", content=parts)


@pytest.mark.parametrize("answered", ["c1", "c2"])
def test_tool_message_answers_only_the_call_that_it_names(answered: str) -> None:
    calls = {"role": "assistant", "tool_calls": [{**TOOL_CALL, "id": call_id} for call_id in ("c1", "c2")]}
    other = {"c1": "c2", "c2": "c1"}[answered]
    with pytest.raises(ApiError, match=f"No 'tool' message has the tool_call_id '{other}'"):
        read_chat_spec(messages=[USER_MESSAGE, calls, {**TOOL_MESSAGE, "tool_call_id": answered}])


def test_tool_calls_and_tool_messages_become_items() -> None:
    custom = {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    spec = read_chat_spec(
        messages=[
            USER_MESSAGE,
            {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL, custom]},
            {"role": "tool", "tool_call_id": "c2", "content": "done"},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
            CALL_MESSAGE,
            TOOL_MESSAGE,
        ]
    )
    assert spec.prompt_input.items[1:] == (
        InputFunctionCall(call_id="c1", name="weather", arguments="{}"),
        InputCustomCall(call_id="c2", name="patch", input="*** Begin"),
        InputCustomOutput(call_id="c2", output="done"),
        InputFunctionOutput(call_id="c1", output=(InputText(text="sunny"),)),
        InputFunctionCall(call_id="c1", name="weather", arguments="{}"),
        InputFunctionOutput(call_id="c1", output="sunny"),
    )


def test_function_and_custom_tools_are_offered() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}}
    spec = read_chat_spec(tools=[FUNCTION, {"type": "custom", "custom": {"name": "patch", "format": grammar}}])
    offers = list(spec.prompt_input.tools)
    assert [(offer.name, offer.kind) for offer in offers] == [("weather", "function"), ("patch", "custom")]
    assert offers[1].format is not None


@pytest.mark.parametrize(
    ("body", "effort"),
    [
        ({}, None),
        ({"reasoning_effort": "high"}, "high"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "none"),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"}, "none"),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"}, "low"),
        ({"chat_template_kwargs": {}}, None),
    ],
)
def test_reasoning_effort_or_template_kwargs_set_the_effort(body: dict[str, Any], effort: str | None) -> None:
    assert read_chat_spec(**body).prompt_input.effort == effort


def test_chat_only_fields_are_read() -> None:
    parsed = read_chat(
        n=3, max_tokens=7, logprobs=True, stream=True, stream_options={"include_usage": True}, stop=["a", "b"],
        parallel_tool_calls=False, seed=1,
    )  # fmt: skip
    spec, form = parsed.spec, parsed.form
    assert (spec.n, spec.sampling.max_tokens, spec.logprobs, spec.sampling.top_logprobs) == (3, 7, True, 0)
    assert (form.stream, form.include_usage, spec.stop_strings, spec.single_call) == (True, True, ("a", "b"), True)
    assert not spec.base_response.store


def test_json_object_with_a_schema_is_the_same_as_json_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    spec = read_chat_spec(response_format={"type": "json_object", "schema": schema})
    assert spec.prompt_input.output_constraint == OutputConstraint(schema=schema)
    assert [constraint.param for constraint in spec.constraints] == ["response_format.schema"]
    constraint = read_chat_spec(response_format={"type": "json_object"}).prompt_input.output_constraint
    assert constraint == OutputConstraint(schema={"type": "object"})


def test_name_of_a_participant_precedes_its_text() -> None:
    messages = [
        {"role": "user", "name": "ann", "content": "Hi"},
        {"role": "assistant", "name": "bot", "content": "Hello"},
        {"role": "user", "name": None, "content": "Bye"},
    ]
    assert [item.content for item in read_chat_spec(messages=messages).prompt_input.items] == [
        "ann: Hi",
        (OutputTextInput(text="bot: "), OutputTextInput(text="Hello")),
        "Bye",
    ]


def test_unknown_field_with_null_counts_as_left_out() -> None:
    read_chat_spec(frobnicate=None, response_format={"type": "text", "schema": None}, stream_options=None)
