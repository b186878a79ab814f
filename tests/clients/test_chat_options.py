"""Options of chat completions: deprecated functions, and usage in every chunk."""

from functools import partial
from typing import Any

import openai
import pytest

from tests.clients.sdk_helpers import open_sdk
from tests.serving import serve

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
FUNCTION = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
SCRIPT: list[dict[str, Any]] = [
    {"name": "report", "when": ["4 degrees"], "output": ["It is 4 degrees."]},
    {"name": "half", "when": ["[half]"], "output": [CALL[:60]], "finish": "length"},
    {"name": "call", "when": ["weather"], "output": [CALL, "\n", CALL]},
    {"name": "text", "output": ["Hello", " there."]},
]
SERVER = partial(serve, SCRIPT)


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def create(client: openai.OpenAI, messages: list[Any], **more: Any) -> Any:
    return client.chat.completions.create(model="scripted", messages=messages, **more)


def test_functions_make_a_loop_of_two_turns(client: openai.OpenAI) -> None:
    messages = ask("weather in Oslo")
    [choice] = create(client, messages, functions=[FUNCTION]).choices
    assert choice.finish_reason == "function_call" and choice.message.tool_calls is None
    call = choice.message.function_call
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Oslo"}'), "one call, as its form allows"
    messages += [
        choice.message.model_dump(exclude_none=True),
        {"role": "function", "name": "get_weather", "content": "4 degrees"},
    ]
    [choice] = create(client, messages, functions=[FUNCTION]).choices
    assert (choice.message.content, choice.finish_reason) == ("It is 4 degrees.", "stop")


def test_streamed_function_call_is_the_sum_of_its_deltas(client: openai.OpenAI) -> None:
    chunks = list(create(client, ask("weather"), functions=[FUNCTION], stream=True))
    deltas = [chunk.choices[0].delta.function_call for chunk in chunks if chunk.choices[0].delta.function_call]
    assert [delta.name for delta in deltas if delta.name] == ["get_weather"]
    assert "".join(delta.arguments or "" for delta in deltas) == '{"city": "Oslo"}'
    assert chunks[-1].choices[0].finish_reason == "function_call"


def test_function_call_that_was_cut_off_has_the_finish_reason_length(client: openai.OpenAI) -> None:
    [choice] = create(client, ask("[half]"), functions=[FUNCTION]).choices
    assert choice.finish_reason == "length" and choice.message.function_call.name == "get_weather"


def test_function_call_none_offers_no_function(client: openai.OpenAI) -> None:
    [choice] = create(client, ask("weather"), functions=[FUNCTION], function_call="none").choices
    assert choice.message.function_call is None and choice.finish_reason == "stop"


def test_every_chunk_has_the_usage_so_far(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(create(client, ask("hi"), stream=True, stream_options=options, n=2))
    usages = [chunk.usage for chunk in chunks]
    assert all(usage is not None for usage in usages)
    counts = [usage.completion_tokens for usage in usages]
    assert counts == sorted(counts) and counts[-1] > counts[0]
    assert usages[-2].prompt_tokens == usages[-1].prompt_tokens > 0
    assert usages[-2].total_tokens == usages[-2].prompt_tokens + usages[-2].completion_tokens


def test_usage_in_every_chunk_needs_include_usage(client: openai.OpenAI) -> None:
    options: Any = {"continuous_usage_stats": True}
    chunks = list(create(client, ask("hi"), stream=True, stream_options=options))
    assert all(chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_has_the_name_that_the_server_was_started_with(field: Any) -> None:
    script = [{"name": "any", "output": ["<think>\nHm.\n</think>\n\n", "Hello."]}]
    other = {"reasoning": "reasoning_content", "reasoning_content": "reasoning"}[field]
    with serve(script, chat_reasoning_field=field) as server, open_sdk(server) as (sdk, _):
        message = create(sdk, ask("hi")).choices[0].message
        assert message.model_extra == {field: "Hm."}
        deltas = [chunk.choices[0].delta.model_extra or {} for chunk in create(sdk, ask("hi"), stream=True)]
    assert "".join(delta.get(field, "") for delta in deltas) == "Hm."
    assert not any(other in delta for delta in deltas)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_regex": "["}, "guided_regex"),
        ({"stop_token_ids": [300_000]}, "stop_token_ids[0]"),
        ({"min_tokens": 9, "max_completion_tokens": 3}, "min_tokens"),
        ({"priority": -1}, "priority"),
        ({"top_p": 0}, "top_p"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"mm_processor_kwargs": {}}, "mm_processor_kwargs"),
    ],
)
def test_refused_field_of_vllm_is_named(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, ask("hi"), extra_body=fields)
    assert refused.value.param == param
