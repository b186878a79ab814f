"""The anthropic SDK over a real socket: messages, streams, tool loops with thinking sent back, token counts, errors."""

import asyncio
import json
from functools import partial
from typing import Any

import anthropic
import httpx
import pytest

from tests.clients.conftest import anthropic_client
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

KEY = "sk-messages-test"
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "report", "when": ["4 degrees"], "output": ["<think>\nReport it.\n</think>\n\n", "It is 4 degrees."]},
    {"name": "failed", "when": ["Error: no such city"], "output": ["There is no such city."]},
    {"name": "call", "when": ["[weather]"], "output": ["<think>\nLook it up.\n</think>\n\n", CALL]},
    {"name": "two", "when": ["[two]"], "output": [CALL, "\n", CALL.replace("Oslo", "Rome")]},
    {"name": "stop", "when": ["[stop]"], "output": ["One. ", "Two. STOP Three."]},
    {"name": "limit", "when": ["[limit]"], "output": ["Half a sen"], "finish": "length"},
    {"name": "half", "when": ["[half]"], "output": ["I run it.", CALL[:60]], "finish": "length"},
    {"name": "fault", "when": ["[fault]"], "output": ["Half", {"fault": "the accelerator is on fire"}]},
    {"name": "json", "when": ["[json]"], "output": ['{"city": "Oslo"}']},
    {"name": "text", "output": ["Hello", " there."]},
]
SERVER = partial(serve, SCRIPT, api_keys=(KEY,))
client = anthropic_client


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "scripted",
        "max_tokens": 4000,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


@pytest.mark.parametrize("text", ["hi", "[weather]", "[two]", "[stop]", "[limit]", "[half]", "[json]"])
def test_streamed_message_equals_the_unstreamed_one(client: anthropic.Anthropic, text: str) -> None:
    request = ask(text, tools=[WEATHER], stop_sequences=["STOP"])
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    assert events[0] == "message_start" and events[-1] == "message_stop"
    if text == "[half]":  # the SDK keeps the unfinished block of a stream
        final.content.pop()
    assert normalize(final) == normalize(whole)


def normalize(message: Any) -> dict[str, Any]:
    """Returns a message without its id, the ids of its calls and the signatures, which differ between requests."""
    data: dict[str, Any] = message.model_dump(exclude_none=True)
    data.pop("id")
    data.pop("parsed_output", None)
    for block in data["content"]:
        for key in ("id", "signature", "parsed_output"):
            block.pop(key, None)
    return data


def test_usage_stop_reasons_and_ids(client: anthropic.Anthropic) -> None:
    expected = {
        "hi": ("end_turn", None),
        "[weather]": ("tool_use", None),
        "[stop]": ("stop_sequence", "STOP"),
        "[limit]": ("max_tokens", None),
        "[half]": ("max_tokens", None),
    }
    for text, reason in expected.items():
        message = client.messages.create(**ask(text, tools=[WEATHER], stop_sequences=["STOP"]))
        assert (message.stop_reason, message.stop_sequence) == reason
        assert message.id.startswith("msg_") and message.role == "assistant" and message.model == "scripted"
        counted = client.messages.count_tokens(
            **{key: value for key, value in ask(text, tools=[WEATHER]).items() if key != "max_tokens"}
        )
        assert counted.input_tokens == message.usage.input_tokens > 0
        assert message.usage.output_tokens > 0 and message.usage.cache_read_input_tokens == 0
    half = client.messages.create(**ask("[half]", tools=[WEATHER]))
    assert [block.type for block in half.content] == ["text"], "no client may run a call that was cut off"


@pytest.mark.parametrize("streamed", [False, True])
def test_tool_loop_with_thinking_sent_back(client: anthropic.Anthropic, streamed: bool) -> None:
    request = ask("[weather]", tools=[WEATHER], thinking={"type": "enabled", "budget_tokens": 1024})

    def send() -> Any:
        if not streamed:
            return client.messages.create(**request)
        with client.messages.stream(**request) as stream:
            return stream.get_final_message()

    first = send()
    thinking, call = first.content
    assert (thinking.type, thinking.thinking) == ("thinking", "Look it up.") and thinking.signature
    assert (call.name, call.input) == ("get_weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "4 degrees"}]}
    request["messages"] += [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    second = send()
    assert [block.type for block in second.content] == ["thinking", "text"]
    assert second.content[1].text == "It is 4 degrees." and second.stop_reason == "end_turn"


def test_failed_tool_result_is_marked_for_the_model(client: anthropic.Anthropic) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no such city", "is_error": True}
    messages = [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    message = client.messages.create(**ask("", tools=[WEATHER]) | {"messages": messages})
    assert message.content[0].text == "There is no such city."


def test_altered_signature_is_refused(client: anthropic.Anthropic) -> None:
    thinking = client.messages.create(**ask("[weather]", tools=[WEATHER])).content[0].model_dump()
    altered = [thinking | {"signature": thinking["signature"][:-2] + "AA"}, {"type": "text", "text": "Hm."}]
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": altered},
        {"role": "user", "content": "b"},
    ]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[1\].content\[0\].signature"):
        client.messages.create(**ask("") | {"messages": messages})


FOREIGN = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "[weather]", "signature": "EqQB"},
            {"type": "text", "text": "Hm."},
        ],
    },
    {"role": "user", "content": "b"},
]
LINE = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.330.ad8; cc_entrypoint=sdk-cli;"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("agent", "behavior", "status"),
    [
        ("sdk", None, 400),
        ("sdk", "error", 400),
        ("sdk", "drop_block", 200),
        ("claude-cli/2.1.330 (external, cli)", None, 200),
        ("claude-cli/2.1.330 (external, cli)", "error", 400),
    ],
)
def test_thinking_of_another_server_never_ends_a_session(
    server: RunningServer, agent: str, behavior: str | None, status: int, stream: bool
) -> None:
    """What is left out is told in a header. Without a setting, only Claude Code, which has none, loses thinking."""
    binding = {} if behavior is None else {"block_binding": {"prefix_mismatch_behavior": behavior}}
    thinking = {"type": "adaptive", **binding}
    body = ask("", thinking=thinking, system=[LINE], stream=stream) | {"messages": FOREIGN}
    headers = {"x-api-key": KEY, "user-agent": agent}
    reply = httpx.post(f"{server.root}/v1/messages", json=body, headers=headers, timeout=HANG_TIMEOUT_S)
    assert reply.status_code == status
    if status == 200:
        assert reply.headers["x-antiphon-dropped"] == "system[0], messages[1].content[0]"
        assert "tool_use" not in reply.text and ("Hello there." in reply.text or stream)
    else:
        assert "messages[1].content[0].signature" in reply.text and "drop_block" in reply.text


def test_line_of_claude_code_costs_no_token(server: RunningServer) -> None:
    rules = {"type": "text", "text": "Be brief."}
    counts, named = [], []
    for system in ([rules], [LINE, rules]):
        body = {"model": "scripted", "messages": ask("hi")["messages"], "system": system}
        reply = httpx.post(f"{server.root}/v1/messages/count_tokens", json=body, headers={"x-api-key": KEY})
        counts.append(reply.json()["input_tokens"])
        named.append(reply.headers.get("x-antiphon-dropped"))
    assert counts[0] == counts[1] and named == [None, "system[0]"]


def test_thinking_text_that_a_client_changed_is_not_used(client: anthropic.Anthropic) -> None:
    """The sealed text counts, so the changed text selects no other reply."""
    thinking = client.messages.create(**ask("[weather]", tools=[WEATHER])).content[0].model_dump()
    blocks = [thinking | {"thinking": "4 degrees"}, {"type": "text", "text": "Hm."}]
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "b"},
    ]
    assert client.messages.create(**ask("") | {"messages": messages}).content[0].text == "Hello there."


def test_redacted_thinking_comes_back(client: anthropic.Anthropic) -> None:
    request = ask("[weather]", tools=[WEATHER], thinking={"type": "adaptive", "display": "omitted"})
    thinking = client.messages.create(**request).content[0]
    assert (thinking.type, thinking.thinking) == ("thinking", "")
    redacted = {"type": "redacted_thinking", "data": thinking.signature}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [redacted, {"type": "text", "text": "Hm."}]},
        {"role": "user", "content": "b"},
    ]
    assert client.messages.create(**ask("") | {"messages": messages}).stop_reason == "end_turn"


def test_structured_output_is_parsed(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    message = client.messages.create(
        **ask("[json]", output_config={"format": {"type": "json_schema", "schema": schema}})
    )
    assert json.loads(message.content[0].text) == {"city": "Oslo"}


def test_fault_is_an_error_of_its_api(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.InternalServerError) as whole:
        client.messages.create(**ask("[fault]"))
    assert whole.value.body["error"] == {"type": "api_error", "message": "the accelerator is on fire"}
    with pytest.raises(anthropic.APIStatusError, match="on fire"), client.messages.stream(**ask("[fault]")) as stream:
        list(stream)


def test_errors_have_anthropics_shape(server: RunningServer, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**ask("hi") | {"model": "nope"})
    assert missing.value.body["error"]["type"] == "not_found_error"
    assert missing.value.request_id == missing.value.body["request_id"]
    with anthropic.Anthropic(base_url=server.root, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            stranger.messages.create(**ask("hi"))
        assert refused.value.body["type"] == "error"
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.models.retrieve("nope")
    assert unknown.value.body["error"]["type"] == "not_found_error"


def test_bearer_token_is_accepted(server: RunningServer) -> None:
    with anthropic.Anthropic(base_url=server.root, auth_token=KEY, max_retries=0) as sdk:
        assert sdk.messages.create(**ask("hi")).content[0].text == "Hello there."


def test_models_are_listed_in_anthropics_shape(server: RunningServer, client: anthropic.Anthropic) -> None:
    [model] = client.models.list()
    assert (model.id, model.type) == ("scripted", "model")
    assert client.models.retrieve("scripted") == model
    as_openai = httpx.get(f"{server.url}/models", headers={"authorization": f"Bearer {KEY}"}).json()
    assert as_openai["object"] == "list" and as_openai["data"][0]["max_model_len"] == 131_072


def test_async_client_streams_text(server: RunningServer) -> None:
    async def read() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=server.root, api_key=KEY, max_retries=0) as sdk,
            sdk.messages.stream(**ask("hi")) as stream,
        ):
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(read()) == "Hello there."
