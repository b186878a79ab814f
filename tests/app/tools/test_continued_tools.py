"""Every kind of tool that the server runs, continued after every step of its turn, also in the middle of a call."""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.tools.outcome import ToolOutcome
from antiphon.app.tools.runners import LOST_VARIABLES
from antiphon.app.turns.due_calls import UNKNOWN_OUTCOME
from tests.app.tools.test_tool_search import CALL_WEATHER, FIND_WEATHER, HAS_FOUND, MCP, TOOLS
from tests.app.tools.tool_turns import ToolTurns, write_call
from tests.app.turns.continued_logs import (
    STORED,
    choose_cuts,
    continue_log,
    drop_cached,
    store_every_turn,
    truncate_log,
)
from tests.invariants import check_stream

UNKNOWN = {"its outcome is unknown": ["I do not know."]}
SEARCH = write_call("web_search", query="Oslo")
CASES: dict[str, tuple[dict[str, Any], dict[str, list[Any]], list[Any]]] = {
    "search of a function": ({}, {HAS_FOUND: [CALL_WEATHER], "": [FIND_WEATHER]}, TOOLS),
    "search of a server": (
        {},
        {
            "Oslo weather": ["It is ", "there."],
            HAS_FOUND: [write_call("web__find", words="Oslo")],
            "": [write_call("tool_search", paths=["web"])],
        },
        [MCP, {"type": "tool_search"}],
    ),
    "web search": (
        {"hosted_tools": ("web_search=web/find",)},
        {"weather.example": ["It is [7 degrees](https://weather.example/oslo)."], "": [SEARCH]},
        [{"type": "web_search"}],
    ),
    "web search by a tool that is required": (
        {"hosted_tools": ("web_search=web/find",)},
        {"weather.example": ["Here."], "": [SEARCH]},
        [{"type": "web_search"}],
    ),
    "code": (
        {"hosted_tools": ("code_interpreter=monty",)},
        {"42": ["It is."], "": [write_call("code_interpreter", code="print(6 * 7)")]},
        [{"type": "code_interpreter", "container": {"type": "auto"}}],
    ),
    "code by a tool": (
        {"hosted_tools": ("code_interpreter=web/find",)},
        {"Oslo weather": ["It is."], "": [write_call("code_interpreter", code="6 * 7")]},
        [{"type": "code_interpreter", "container": "cntr_mine"}],
    ),
    "files": (
        {"vector_stores": ("vs_docs=FOLDER",)},
        {"called Mimi": ["Mimi."], "": [write_call("file_search", query="name of the cat")]},
        [{"type": "file_search", "vector_store_ids": ["vs_docs"]}],
    ),
}


@pytest.fixture(autouse=True)
def _turns_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    store_every_turn(monkeypatch)


@pytest.mark.parametrize("name", CASES)
async def test_turn_continues_after_every_step(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cat.md").write_text("The cat is called Mimi.", encoding="utf-8")
    options, replies, tools = CASES[name]
    options = {key: tuple(each.replace("FOLDER", str(tmp_path)) for each in value) for key, value in options.items()}
    fields: dict[str, Any] = {"tool_choice": "required"} if "required" in name else {}
    turns = ToolTurns(UNKNOWN | replies, monkeypatch, **options)
    events = await turns.run_turn(tools=tools, **fields)
    (log,) = turns.manager.store._logs.values()  # type: ignore[attr-defined]  # a store of the tests
    assert events[-1]["response"]["status"] == "completed"
    num_unknown = 0
    for cut in choose_cuts(log):
        other = ToolTurns(UNKNOWN | replies, monkeypatch, **options)
        model = other.registry.served[0]
        continued = await continue_log(other.manager, model, truncate_log(log, cut), STORED[log.id])
        assert continued[:cut] == events[:cut]
        response = check_stream(continued)
        await other.manager.drain(0)
        if other.jobs and UNKNOWN_OUTCOME in model.format.decode(other.jobs[-1].tokens):
            num_unknown += 1
            assert "failed" in [item.get("status") for item in response["output"]]
            assert response["output"][-1]["content"][0]["text"] == "I do not know."
            assert not other.servers.calls
            continue
        assert drop_cached(response) == drop_cached(events[-1]["response"]), f"cut after {cut} events"
        expected = {job.id: job.tokens for job in turns.jobs}
        assert all(job.tokens == expected[job.id] for job in other.jobs)
    await turns.manager.drain(0)
    assert bool(num_unknown) == (name != "search of a function"), "a search among deferred tools takes no time"


async def test_continued_code_says_that_its_variables_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_call("code_interpreter", code="print(6 * 7)")
    second = write_call("code_interpreter", code="print(1 + 1)")
    replies = {"print(1 + 1)": ["Two."], "42": [second], "": [first]}
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    turns = ToolTurns(replies, monkeypatch, hosted_tools=("code_interpreter=monty",))
    events = await turns.run_turn(tools=tools)
    (log,) = turns.manager.store._logs.values()  # type: ignore[attr-defined]  # a store of the tests
    types = [event["type"] for event in events]
    cut = types.index("response.code_interpreter_call.completed") + 2
    other = ToolTurns(replies, monkeypatch, hosted_tools=("code_interpreter=monty",))
    continued = await continue_log(other.manager, other.registry.served[0], truncate_log(log, cut), STORED[log.id])
    calls = [item for item in continued[-1]["response"]["output"] if item["type"] == "code_interpreter_call"]
    assert [call["outputs"][0]["logs"] for call in calls] == ["42\n", f"{LOST_VARIABLES}2\n"]
    await turns.manager.drain(0)
    await other.manager.drain(0)


async def test_continued_searches_count_the_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    again = write_call("web_search", query="Bergen")
    replies = {"no more web searches": ["Enough."], "weather.example": [again], "": [SEARCH]}
    options = {"hosted_tools": ("web_search=web/find",)}
    turns = ToolTurns(replies, monkeypatch, **options)
    events = await turns.run_turn(tools=[{"type": "web_search", "max_uses": 1}])
    (log,) = turns.manager.store._logs.values()  # type: ignore[attr-defined]  # a store of the tests
    cut = [event["type"] for event in events].index("response.web_search_call.completed") + 2
    other = ToolTurns(replies, monkeypatch, **options)
    continued = await continue_log(other.manager, other.registry.served[0], truncate_log(log, cut), STORED[log.id])
    assert drop_cached(continued[-1]["response"]) == drop_cached(events[-1]["response"])
    assert not other.servers.calls


async def test_calls_of_what_is_not_served_any_more_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {"not served any more": ["A pity."], "Oslo weather": ["Fine."], "": [SEARCH]}
    turns = ToolTurns(replies, monkeypatch, hosted_tools=("web_search=web/find",))
    turns.servers.outcome = ToolOutcome(text="Oslo weather")
    await turns.run_turn(tools=[{"type": "web_search"}])
    (log,) = turns.manager.store._logs.values()  # type: ignore[attr-defined]  # a store of the tests
    other = ToolTurns(replies, monkeypatch)
    continued = await continue_log(other.manager, other.registry.served[0], truncate_log(log, 2), STORED[log.id])
    search, message = check_stream(continued)["output"]
    assert search["status"] == "failed" and json.dumps(message).count("A pity.") == 1


async def test_container_of_an_earlier_response_is_gone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "container_id": "cntr_gone",
        "code": "x = 1",
        "outputs": None,
        "status": "completed",
    }
    replies = {"42": ["It is."], "": [write_call("code_interpreter", code="print(6 * 7)")]}
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    turns = ToolTurns(replies, monkeypatch, hosted_tools=("code_interpreter=monty",))
    sent: list[Any] = [{"role": "user", "content": "Hi"}, earlier, {"role": "user", "content": "And?"}]
    await turns.run_turn(tools=tools, input=sent)
    (log,) = turns.manager.store._logs.values()  # type: ignore[attr-defined]  # a store of the tests
    other = ToolTurns(replies, monkeypatch, hosted_tools=("code_interpreter=monty",))
    continued = await continue_log(other.manager, other.registry.served[0], truncate_log(log, 2), STORED[log.id])
    call = continued[-1]["response"]["output"][0]
    assert call["outputs"][0]["logs"] == f"{LOST_VARIABLES}42\n"
    await turns.manager.drain(0)
    await other.manager.drain(0)
