"""Rounds of a turn whose tools the server runs: calls that are cut, and a call whose end cannot be processed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from antiphon.app.turns.core.rounds import Round, ServerCall
from antiphon.app.turns.prompts.spoken_items import list_spoken
from antiphon.app.turns.rounds import RoundPlanner
from antiphon.events.hosted import McpCall
from antiphon.events.inputs import InputFunctionCall
from antiphon.state.segments import Call
from tests.app.tools.interrupted_calls import body, run_tools


def test_call_that_was_cut_is_spoken_as_it_stands() -> None:
    ended = Round(cast("Any", None), cast("Any", SimpleNamespace(unoffered_calls=[])), 0)
    ended.calls.append(ServerCall(Call("add", "mcp", None, "test", server_label="test"), '{"a": 1}', "2"))
    whole, cut = (
        McpCall(id=name, name="add", server_label="test", arguments='{"a": 1}', status=status)
        for name, status in (("mcp_1", "completed"), ("mcp_2", "incomplete"))
    )
    shown, last = list_spoken(ended, (whole, cut))
    assert isinstance(shown, InputFunctionCall) and (shown.call_id, shown.arguments) == ("mcp_1", '{"a": 1}')
    assert isinstance(last, InputFunctionCall) and last.call_id == "mcp_2"


async def test_call_whose_end_fails_is_not_executed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine continues while a tool runs, and each of its steps starts the calls that are due."""

    async def fail(*_: object) -> str:
        raise ValueError("cannot be counted")

    async with run_tools() as run:
        run.seen.methods.clear()
        monkeypatch.setattr(RoundPlanner, "_shorten_output", fail)
        reply = await asyncio.wait_for(run.post(**body("Please talk.")), 30)
    response = reply.json()
    assert run.seen.methods.count("tools/call") == 1
    assert response["status"] == "failed" and response["error"]["code"] == "server_error"
    assert response["output"][-1]["status"] == "incomplete"
