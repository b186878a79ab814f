"""Integers above 64 bits in what clients send and models write: JSON has them, and msgpack has not."""

import time
from functools import partial
from typing import Any

import httpx
import pytest

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

BIG = 2**70
ARGUMENTS = f'{{"n": {BIG}}}'
CALL = f'<tool_call>{{"name": "count", "arguments": {ARGUMENTS}}}</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "call", "when": ["Call"], "output": [CALL]},
    {"name": "any", "output": ["Hi."]},
]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "default": BIG, "enum": [BIG, -BIG]}}}
TOOL = {"type": "function", "name": "count", "parameters": SCHEMA, "strict": False}
DEFAULT = {"type": "integer", "default": BIG}
FORMAT = {
    "type": "json_schema",
    "name": "n",
    "schema": {"type": "object", "properties": {"n": DEFAULT}},
    "strict": False,
}
RESULT = [
    {"type": "function_call", "call_id": "c1", "name": "count", "arguments": ARGUMENTS},
    {"type": "function_call_output", "call_id": "c1", "output": ARGUMENTS},
]
BODIES: dict[str, dict[str, Any]] = {
    "tool": {"input": "Hi", "tools": [TOOL]},
    "arguments": {"input": "Call", "tools": [TOOL]},
    "result": {"input": RESULT, "tools": [TOOL]},
    "format": {"input": "Hi", "text": {"format": FORMAT}},
}
SERVERS = {inspect: partial(serve, SCRIPT, file_store=True, inspect=inspect) for inspect in ("memory", "store")}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("kind", BODIES)
def test_response_is_generated_and_recorded(server: RunningServer, kind: str, *, background: bool) -> None:
    body = {"model": "scripted", "background": background, **BODIES[kind]}
    reply = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    response = reply.json()
    while response["status"] in ("queued", "in_progress"):
        time.sleep(0.02)
        response = httpx.get(f"{server.url}/responses/{response['id']}").json()
    assert response["status"] == "completed", response
    if kind == "arguments":
        assert str(BIG) in response["output"][0]["arguments"]
    if kind != "format":
        assert response["tools"][0]["parameters"] == SCHEMA
    key = {"authorization": f"Bearer {server.context.page_key}"}
    deadline = time.monotonic() + HANG_TIMEOUT_S
    while time.monotonic() < deadline:
        turn = httpx.get(f"{server.url}/inspect/turns/{response['id']}", headers=key).json()
        if turn.get("recorded") and turn["status"] == "completed":
            return
        time.sleep(0.02)
    pytest.fail(f"no record: {turn}")


def test_chat_and_messages_take_them(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "Call"}]
    function = {"type": "function", "function": {"name": "count", "parameters": SCHEMA}}
    body = {"model": "scripted", "messages": messages, "tools": [function], "store": True}
    reply = httpx.post(f"{server.url}/chat/completions", json=body, timeout=HANG_TIMEOUT_S)
    assert reply.status_code == 200 and str(BIG) in reply.text
    tool = {"name": "count", "input_schema": SCHEMA}
    body = {"model": "scripted", "messages": messages, "tools": [tool], "max_tokens": 99}
    reply = httpx.post(f"{server.url}/messages", json=body, timeout=HANG_TIMEOUT_S)
    assert reply.status_code == 200 and str(BIG) in reply.text
