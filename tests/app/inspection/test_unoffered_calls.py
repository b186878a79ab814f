"""Calls of tools that the request does not offer: `/v1/inspect` says what was called, where, and what became of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.inspection.inspector import SCRIPT, TOOLS, Inspector
from tests.serving import scripted_registry, serve

MORE_TOOLS = [{"type": "function", "name": f"tool_{number}", "parameters": {"type": "object"}} for number in range(40)]
PLAIN_SCRIPT: list[dict[str, Any]] = [
    {"name": "call", "when": ["Call"], "output": ['{"name": "seek", "parameters": {"a": 1}}']},
    {"name": "person", "when": ["Person"], "output": ['{"name": "Ada", "age": 36}']},
]


@pytest.fixture(scope="module")
def text_inspector() -> Iterator[Inspector]:
    with (
        serve(lambda: scripted_registry(SCRIPT, max_num_seqs=64), unknown_tools="text") as server,
        Inspector(server) as opened,
    ):
        yield opened


def find_unoffered(inspector: Inspector, turn_id: str) -> list[dict[str, Any]]:
    """Returns the findings about such calls. The record of the turn must say the same."""
    found = inspector.get(f"/turns/{turn_id}/findings").json()["data"]
    findings = [each for each in found if each["code"] == "tool-not-offered"]
    calls = inspector.get(f"/turns/{turn_id}").json()["unoffered_calls"]
    assert [(each["name"], each["event"], each["reason"]) for each in calls] == [
        (each["subject"], each["event"], each["why"]) for each in findings
    ]
    return findings


def read_tokens(inspector: Inspector, turn_id: str) -> list[int]:
    rows = inspector.lines(f"/turns/{turn_id}/events")
    return [token for row in rows for token in row.get("detail", {}).get("tokens", [])]


def test_call_that_became_text_is_a_finding(text_inspector: Inspector) -> None:
    turn_id = text_inspector.ask("Unknown", tools=TOOLS)
    turn = text_inspector.get(f"/turns/{turn_id}").json()
    assert turn["ending"]["cause"] == "stop_token", "the ending does not tell why"
    [finding] = find_unoffered(text_inspector, turn_id)
    assert (finding["level"], finding["subject"], finding["expected"]) == ("warning", "seek", "a call of find")
    assert "--unknown-tools text" in finding["why"] and "became text" in finding["actual"]
    [call] = turn["unoffered_calls"]
    assert (call["became"], call["offered"], call["num_offered"]) == ("text", ["find"], 1)
    assert call["description"].endswith(f"Event {call['event']}, tokens 8 to 24; offered: find.")
    event = text_inspector.lines(f"/turns/{turn_id}/events")[call["event"]]["event"]
    assert event["type"] == "response.output_text.delta" and "seek" in event["delta"]
    tokens = read_tokens(text_inspector, turn_id)
    model = text_inspector.server.context.models.served[0]
    first, end = call["tokens"]
    assert model.format.decode(tokens[first:end]).startswith("<tool_call>") and end < len(tokens)
    assert "seek" in model.format.decode(tokens[first:end]) and "tool_call" not in model.format.decode(tokens[:first])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"tools": [{"type": "function", "function": {"name": "find"}}]}),
        ("messages", {"tools": [{"name": "find", "input_schema": {"type": "object"}}], "max_tokens": 99}),
    ],
)
def test_other_apis_have_the_finding(text_inspector: Inspector, path: str, body: dict[str, Any]) -> None:
    sent = {"model": "scripted", "messages": [{"role": "user", "content": "Unknown"}], **body}
    reply = text_inspector.client.post(f"/v1/{path}", json=sent).raise_for_status().json()
    [finding] = find_unoffered(text_inspector, reply["id"])
    assert finding["subject"] == "seek" and finding["expected"] == "a call of find"


def test_call_that_was_returned_is_a_note(inspector: Inspector) -> None:
    turn_id = inspector.ask("Unknown", tools=[*TOOLS, *MORE_TOOLS])
    [finding] = find_unoffered(inspector, turn_id)
    assert finding["level"] == "note" and "--unknown-tools call" in finding["why"]
    assert finding["expected"].startswith("a call of find, tool_0,") and finding["expected"].endswith(" and 31 more")
    event = inspector.lines(f"/turns/{turn_id}/events")[finding["event"]]["event"]
    assert event["type"] == "response.output_item.added" and event["item"]["name"] == "seek"


def test_offered_tools_and_turns_without_tools_have_none(text_inspector: Inspector) -> None:
    assert find_unoffered(text_inspector, text_inspector.ask("Search", tools=TOOLS)) == []
    assert find_unoffered(text_inspector, text_inspector.ask("Unknown")) == [], "without tools, no call is read"


@pytest.mark.parametrize("mode", ["text", "call"])
def test_plain_object_is_a_call_only_with_arguments(mode: str) -> None:
    with (
        serve(lambda: scripted_registry(PLAIN_SCRIPT, dialect="llama3"), unknown_tools=mode) as server,
        Inspector(server) as inspector,
    ):
        [finding] = find_unoffered(inspector, inspector.ask("Call", tools=TOOLS))
        assert finding["subject"] == "seek" and "ordinary answers" in finding["why"]
        assert find_unoffered(inspector, inspector.ask("Person", tools=TOOLS)) == []


def test_stored_turn_has_the_finding_after_a_restart(tmp_path: Any) -> None:
    options: dict[str, Any] = {"store_file": tmp_path / "responses.db", "inspect": "store", "unknown_tools": "text"}
    with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
        turn_id = inspector.ask("Unknown", tools=TOOLS, store=True)
        before = find_unoffered(inspector, turn_id)
    with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
        assert find_unoffered(inspector, turn_id) == before and len(before) == 1
