"""Names of tools with 65 to 128 characters, as MCP servers and agents have them: the model gets shorter ones."""

import json
from functools import partial
from typing import Any

import httpx
import pytest

from antiphon.harmony.tools import MAX_TOOL_NAME_CHARS, ToolTable
from tests.serving import RunningServer, serve

NAME = "mcp__plugin_orchard_tools__get_the_harvest_report_of_all_fields_of_one_season"
NAMESPACE = "mcp__orchard"
SHORT = ToolTable().model_name_of(NAME)
SHORT_IN_NAMESPACE = ToolTable().model_name_of(NAME, NAMESPACE)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"type": "function", "name": NAME, "parameters": SCHEMA}


def write_call(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": "x"}}}}\n</tool_call>'


SERVER = partial(
    serve,
    [
        {"name": "history", "when": ["GO ON", f'"name": "{SHORT}"'], "output": ["Fine."]},
        {"name": "short", "when": ["CALL THE SHORT", SHORT], "output": [write_call(SHORT)]},
        {"name": "whole", "when": ["CALL THE WHOLE", SHORT], "output": [write_call(NAME)]},
        {"name": "raw", "when": ["CALL RAW", SHORT], "output": [f"<tool_call>\n<custom={SHORT}>\nhi\n</custom>\n</tool_call>"]},
        {"name": "namespace", "when": ["CALL INSIDE", SHORT_IN_NAMESPACE], "output": [write_call(SHORT_IN_NAMESPACE)]},
        {"name": "joined", "when": ["CALL JOINED", SHORT_IN_NAMESPACE], "output": [write_call(f"{NAMESPACE}__{NAME}")]},
    ],
)  # fmt: skip


def respond(server: RunningServer, text: Any, tool: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "input": text, "tools": [tool], **fields}
    return httpx.post(f"{server.url}/responses", json=body)


def test_short_names_are_short() -> None:
    assert 64 < len(NAME) <= 128
    assert max(len(SHORT), len(SHORT_IN_NAMESPACE)) <= MAX_TOOL_NAME_CHARS and SHORT != SHORT_IN_NAMESPACE


@pytest.mark.parametrize(
    ("text", "tool", "kind"),
    [
        ("CALL THE SHORT", FUNCTION, "function_call"),
        ("CALL THE WHOLE", FUNCTION, "function_call"),
        ("CALL RAW", {"type": "custom", "name": NAME}, "custom_tool_call"),
        ("CALL INSIDE", {"type": "namespace", "name": NAMESPACE, "description": "d", "tools": [FUNCTION]}, "function_call"),
        ("CALL JOINED", {"type": "namespace", "name": NAMESPACE, "description": "d", "tools": [FUNCTION]}, "function_call"),
    ],
)  # fmt: skip
def test_call_comes_back_under_the_name_that_the_client_sent(
    server: RunningServer, text: str, tool: dict[str, Any], kind: str
) -> None:
    reply = respond(server, text, tool)
    assert reply.status_code == 200, reply.text
    [call] = reply.json()["output"]
    assert (call["type"], call["name"]) == (kind, NAME)
    assert call.get("namespace") == (NAMESPACE if tool["type"] == "namespace" else None)


def test_call_of_the_history_is_shown_under_the_short_name(server: RunningServer) -> None:
    call = {"type": "function_call", "call_id": "c", "name": NAME, "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "1"}
    reply = respond(server, [call, output, {"role": "user", "content": "GO ON"}], FUNCTION)
    assert reply.json()["output"][0]["content"][0]["text"] == "Fine."


@pytest.mark.parametrize("choice", [{"type": "function", "name": NAME}, "required"])
def test_choice_names_the_tool_as_the_client_does(server: RunningServer, choice: Any) -> None:
    assert respond(server, "CALL THE SHORT", FUNCTION, tool_choice=choice).status_code == 200


def test_messages_takes_long_names(server: RunningServer) -> None:
    def send(*messages: Any, **fields: Any) -> httpx.Response:
        body = {"model": "scripted", "max_tokens": 200, "messages": messages, **fields}
        return httpx.post(f"{server.url}/messages", json=body, headers={"anthropic-version": "2023-06-01"})

    tools = [{"name": NAME, "input_schema": SCHEMA}]
    reply = send({"role": "user", "content": "CALL THE SHORT"}, tools=tools, tool_choice={"type": "tool", "name": NAME})
    assert reply.status_code == 200, reply.text
    [block] = reply.json()["content"]
    assert (block["type"], block["name"]) == ("tool_use", NAME)
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "1"}
    question = {"role": "user", "content": "Hi."}
    turn = [
        question,
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [result, {"type": "text", "text": "GO ON"}]},
    ]
    reply = send(*turn, tools=tools)
    assert reply.json()["content"] == [{"type": "text", "text": "Fine."}] and reply.status_code == 200
    assert send(question, tools=[{"name": "n" * 129, "input_schema": SCHEMA}]).status_code == 400


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_chat_takes_names_of_64_characters_only(server: RunningServer, kind: str) -> None:
    for name, status in (("n" * 64, 200), ("n" * 65, 400)):
        body = {
            "model": "scripted",
            "messages": [{"role": "user", "content": "CALL"}],
            "tools": [{"type": kind, kind: {"name": name}}],
        }
        reply = httpx.post(f"{server.url}/chat/completions", json=body)
        assert (reply.status_code == 400) == (status == 400), reply.text
        if status == 400:
            error = json.loads(reply.text)["error"]
            assert (error["param"], error["code"]) == (f"tools[0].{kind}.name", "invalid_value")
