"""Replays of turns with tools of the server, over real sockets: in memory, and in the store after a restart."""

from pathlib import Path
from typing import Any

import pytest

from tests.app.inspection.inspector import Inspector
from tests.app.tools.tool_turns import FakeServers, write_call
from tests.serving import serve

REPLAYED = {"checked": True, "reason": None}
SCRIPT: list[dict[str, Any]] = [
    {"name": "summary", "when": ["Sum it up"], "output": ["A summary."]},
    {"name": "cite", "when": ["Again"], "output": ["As [before](https://weather.example/oslo), 7 degrees."]},
    {"name": "answer", "when": ["7 degrees"], "output": ["See [the page](https://weather.example/oslo)."]},
    {"name": "search", "when": ["Search"], "output": ["I search.\n", write_call("web_search", query="oslo")]},
    {"name": "call", "when": ["Call"], "output": ["I call.\n", write_call("web__find", words="oslo"), "\nWait."]},
    {"name": "any", "output": ["Hello."]},
]
SEARCH = {"type": "web_search"}
MCP = {"type": "mcp", "server_label": "web", "require_approval": "never"}
ASKING_MCP = MCP | {"require_approval": "always"}


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.setattr("antiphon.app.tools.tool_host.ToolServers", lambda _, **limits: FakeServers())
    return {
        "tool_servers": ("web=http://127.0.0.1:9/mcp",),
        "hosted_tools": ("web_search=web/find",),
        "store_file": tmp_path / "responses.db",
        "inspect": "store",
    }


def check(inspector: Inspector, turn_id: str) -> None:
    found = inspector.get(f"/turns/{turn_id}/findings").json()
    assert found["replay"] == REPLAYED and not [each for each in found["data"] if each["level"] == "error"], found


@pytest.mark.parametrize("store", [False, True])
def test_turns_with_tools_are_replayed(options: dict[str, Any], store: bool) -> None:
    with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
        ids = [
            inspector.ask("Search", tools=[SEARCH], store=store),
            inspector.ask("Call", tools=[MCP], store=store),
            inspector.ask("Call", tools=[MCP, SEARCH], store=store, max_tool_calls=1),
            inspector.ask("Hi", tools=[MCP], store=store),
        ]
        for each in ids:
            check(inspector, each)
    if store:
        with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
            for each in ids:
                check(inspector, each)


def test_citation_of_an_earlier_turn_is_replayed(options: dict[str, Any]) -> None:
    with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
        first = inspector.ask("Search", tools=[SEARCH], store=True)
        second = inspector.ask("Again", tools=[SEARCH], store=True, previous_response_id=first)
        events = [row["event"] for row in inspector.lines(f"/turns/{second}/events")]
        assert any(event["type"] == "response.output_text.annotation.added" for event in events)
        check(inspector, second)


def test_approved_call_is_replayed(options: dict[str, Any]) -> None:
    with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
        asked = inspector.ask("Call", tools=[ASKING_MCP], store=True)
        items = inspector.client.get(f"/v1/responses/{asked}").json()["output"]
        [request] = [item for item in items if item["type"] == "mcp_approval_request"]
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        approved = inspector.ask("", tools=[ASKING_MCP], input=[answer], store=True, previous_response_id=asked)
        check(inspector, asked)
        check(inspector, approved)


def test_compaction_is_replayed(options: dict[str, Any]) -> None:
    with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
        body = {"model": "scripted", "input": "Hi"}
        assert inspector.client.post("/v1/responses/compact", json=body).status_code == 200
        [turn] = inspector.get("/turns", limit=1).json()["data"]
        assert turn["api"] == "compact"
        check(inspector, turn["id"])
