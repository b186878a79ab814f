"""Prompts that are processed for a later request, by POST and over WebSocket, and breakpoints of the prompt cache."""

import json
from typing import Any

import httpx
import pytest

from tests.clients.websocket_turns import open_websocket, run_turn
from tests.conftest import StartServer
from tests.invariants import check_stream
from tests.serving import scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [{"name": "any", "output": ["Yes."]}]
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief. " * 20}
PREWARM: dict[str, Any] = {"prompt_cache_options": {"prewarm": True}}


def create(url: str, **fields: Any) -> Any:
    reply = httpx.post(f"{url}/responses", json={"model": "scripted", "input": "Hi", **fields})
    return reply.json() if reply.headers["content-type"].startswith("application/json") else reply.text


def test_prewarm_processes_the_prompt_and_generates_nothing(start_server: StartServer) -> None:
    server = start_server(SCRIPT)
    warm = create(server.url, input=[SYSTEM], **PREWARM)
    assert (warm["status"], warm["output"]) == ("completed", [])
    assert warm["usage"]["output_tokens"] == 0 and warm["usage"]["input_tokens"] > 100
    stored = httpx.get(f"{server.url}/responses/{warm['id']}").json()
    assert stored == warm
    answer = create(server.url, previous_response_id=warm["id"])
    assert answer["output"][0]["content"][0]["text"] == "Yes.", "it used up no reply of the script"
    assert "prompt_cache_options" not in answer


def test_prewarm_is_streamed(start_server: StartServer) -> None:
    text = create(start_server(SCRIPT).url, stream=True, **PREWARM)
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    check_stream(events)
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]


@pytest.mark.parametrize("fields", [{}, {"generate": True}, {"generate": False}])
def test_prewarm_over_a_websocket_generates_nothing(fields: dict[str, Any]) -> None:
    with serve(lambda: scripted_registry(SCRIPT)) as server, open_websocket(server) as websocket:
        warm = run_turn(websocket, [SYSTEM], store=False, **PREWARM, **fields)[-1]["response"]
        assert (warm["status"], warm["output"]) == ("completed", [])
        answer = run_turn(websocket, previous_response_id=warm["id"], store=False)[-1]["response"]
        assert answer["output"][0]["content"][0]["text"] == "Yes."


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ({"mode": "explicit", "ttl": "12h"}, {"mode": "explicit", "ttl": "12h"}),
        ({"ttl": "12h"}, {"mode": "implicit", "ttl": "12h"}),
        ({"prewarm": False}, {"mode": "implicit", "ttl": "30m"}),
    ],
)
def test_cache_options_are_echoed_with_their_defaults(
    start_server: StartServer, sent: dict[str, Any], echoed: dict[str, Any]
) -> None:
    created = create(start_server(SCRIPT).url, prompt_cache_options=sent)
    assert created["prompt_cache_options"] == echoed
    assert created["output"][0]["content"][0]["text"] == "Yes."


def test_breakpoints_do_not_change_the_prompt(start_server: StartServer) -> None:
    server = start_server(SCRIPT)
    part = {"type": "input_text", "text": "Hi"}
    marks = ({"mode": "explicit"}, {"mode": "explicit", "ttl": "12h"})
    sent = [[{**part, "prompt_cache_breakpoint": mark} for _ in range(5)] for mark in marks]
    sizes = [
        create(server.url, input=[{"role": "user", "content": parts}])["usage"]["input_tokens"]
        for parts in ([part] * 5, *sent)
    ]
    assert len(set(sizes)) == 1
    message = {"role": "user", "content": [{"type": "text", "text": "Hi", "prompt_cache_breakpoint": marks[0]}]}
    chat = httpx.post(f"{server.url}/chat/completions", json={"model": "scripted", "messages": [message]})
    assert chat.status_code == 200


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt_cache_options": {"prewarm": "yes"}}, "invalid_type", "prompt_cache_options.prewarm"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "invalid_value", "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"warm": True}}, "unknown_parameter", "prompt_cache_options.warm"),
        (
            {"input": [SYSTEM, {"type": "compaction_trigger"}], **PREWARM},
            "invalid_value",
            "prompt_cache_options.prewarm",
        ),
    ],
)
def test_invalid_cache_options_are_named(start_server: StartServer, fields: Any, code: str, param: str) -> None:
    error = create(start_server(SCRIPT).url, **fields)["error"]
    assert (error["code"], error["param"]) == (code, param)


def test_prewarm_is_not_compacted(start_server: StartServer) -> None:
    long = {"role": "user", "content": "word " * 2000}
    warm = create(
        start_server(SCRIPT).url,
        input=[long],
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
        **PREWARM,
    )
    assert warm["output"] == [] and warm["usage"]["output_tokens"] == 0
