"""The anthropic SDK: an answer that the client has begun, as the last message of a conversation, is continued."""

from functools import partial
from typing import Any

import anthropic
import pytest

from tests.clients.conftest import anthropic_client
from tests.conftest import StartServer
from tests.serving import scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "json", "when": ["<|im_start|>assistant\n{"], "output": ['"city": "Oslo"}']},
    {"name": "marker", "when": ["<|im_start|>assistant\nI say"], "output": ["<think> is a marker"]},
    {"name": "other", "output": ["Hello."]},
]
SERVER = partial(serve, SCRIPT)
client = anthropic_client
USER = {"role": "user", "content": "Where?"}
WEATHER = {"name": "get_weather", "input_schema": {"type": "object"}}


def begun(content: Any) -> list[Any]:
    return [USER, {"role": "assistant", "content": content}]


def create(client: anthropic.Anthropic, messages: list[Any], **more: Any) -> Any:
    return client.messages.create(model="scripted", max_tokens=100, messages=messages, **more)


@pytest.mark.parametrize("content", ["{", [{"type": "text", "text": "{"}]])
def test_answer_continues_the_begun_text(client: anthropic.Anthropic, content: Any) -> None:
    message = create(client, begun(content))
    assert [block.text for block in message.content] == ['"city": "Oslo"}'], "the begun text is not repeated"
    with client.messages.stream(model="scripted", max_tokens=100, messages=begun(content)) as stream:
        assert "".join(stream.text_stream) == '"city": "Oslo"}'


def test_reasoning_marker_in_the_middle_of_an_answer_is_text(client: anthropic.Anthropic) -> None:
    assert [block.text for block in create(client, begun("I say")).content] == ["<think> is a marker"]


def test_begun_answer_is_part_of_the_counted_prompt(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="scripted", messages=begun("{"))
    assert counted.input_tokens == create(client, begun("{")).usage.input_tokens


@pytest.mark.parametrize(
    ("messages", "more"),
    [
        (begun("{"), {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}),
        (begun([{"type": "tool_use", "id": "a", "name": "get_weather", "input": {}}]), {"tools": [WEATHER]}),
    ],
)
def test_only_a_text_without_thinking_is_continued(
    client: anthropic.Anthropic, messages: list[Any], more: dict[str, Any]
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**{"model": "scripted", "max_tokens": 100, "messages": messages, **more})
    assert "messages" in refused.value.message


def test_model_without_a_template_refuses_to_continue(start_server: StartServer) -> None:
    server = start_server(partial(scripted_registry, SCRIPT, dialect="gpt-oss"))
    with anthropic.Anthropic(base_url=server.root, api_key="any", max_retries=0) as sdk:
        with pytest.raises(anthropic.BadRequestError, match="Invalid 'messages'"):
            create(sdk, begun("{"))
        assert create(sdk, [USER]).role == "assistant"
