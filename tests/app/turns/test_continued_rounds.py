"""Turns with tools of the server, or with a compaction, continue after every step as if nothing had happened."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from antiphon.app.turns.continuation.replay import ReplayError
from antiphon.app.turns.continuation.stored_turn import decode_turn
from antiphon.app.turns.due_calls import UNKNOWN_OUTCOME
from tests.app.turns.continued_logs import (
    STORED,
    choose_cuts,
    continue_log,
    drop_cached,
    store_every_turn,
    truncate_log,
)
from tests.invariants import check_stream
from tests.snapshots import run_case
from tests.snapshots.builtin_cases import BUILTIN_CASES
from tests.snapshots.cases import Case
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.tool_cases import TOOL_CASES
from tests.snapshots.tool_runs import ToolCase, open_run, run_tool_case

UNDISTURBED = [
    case for case in TOOL_CASES if not (case.act or case.waits or case.given_up or case.name.endswith("_fails"))
]
COMPACTED = [case for case in (*BUILTIN_CASES, *EXTRA_CASES) if case.name.startswith("compaction") and not case.cancel]


@pytest.fixture(autouse=True)
def _turns_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    store_every_turn(monkeypatch)


def is_called(core_events: Sequence[dict[str, Any]]) -> bool:
    """Tells whether a call of the server has begun and has not ended."""
    types = [event["type"] for event in core_events]
    begun = sum(kind.endswith("mcp_call_arguments.done") for kind in types)
    ended = sum(kind.endswith(("mcp_call.completed", "mcp_call.failed")) for kind in types)
    return begun > ended


@pytest.mark.parametrize("case", UNDISTURBED, ids=lambda case: case.name)
async def test_tool_turn_continues_after_every_step(case: ToolCase) -> None:
    first = await run_tool_case(case)
    log = first.run.log
    if first.error is not None or log is None:
        return
    events = [json.loads(entry.data) for entry in log.entries]
    for cut in choose_cuts(log):
        async with open_run(case) as second:
            for name, answers in second.servers._answers.items():
                done = [
                    e
                    for e in events[:cut]
                    if e["type"] == "response.output_item.done" and e["item"]["type"] == "mcp_call"
                ]
                used = sum(e["item"]["name"] == name and e["item"]["status"] in ("completed", "failed") for e in done)
                del answers[: min(used, len(answers) - 1)]
            continued = await continue_log(second.manager, second.model, truncate_log(log, cut), STORED[log.id])
            assert continued[:cut] == events[:cut]
            response = check_stream(continued)
            if is_called(events[:cut]) and case.name != "tool_that_is_not_there":  # its calls are never made
                [failed] = [item for item in response["output"] if UNKNOWN_OUTCOME in json.dumps(item)]
                assert (failed["type"], failed["status"]) == ("mcp_call", "failed")
                continue
            if case.earlier is not None:
                # The prompt behind an approved call has the ids of the earlier turn only where that was generated.
                response, expected = response | {"usage": None}, events[-1]["response"] | {"usage": None}
                assert response == expected, f"cut after {cut} events"
                continue
            assert drop_cached(response) == drop_cached(events[-1]["response"]), f"cut after {cut} events"
            prompts = {job.id: job.tokens for job in first.run.jobs}
            for job in second.jobs:
                assert job.tokens == prompts[job.id], f"cut after {cut} events"


@pytest.mark.parametrize("case", COMPACTED, ids=lambda case: case.name)
async def test_compacted_turn_continues_after_every_step(case: Case) -> None:
    first = await run_case.read_responses(case)
    log = first.log
    assert log is not None
    events = [json.loads(entry.data) for entry in log.entries]
    for cut in choose_cuts(log):
        registry = run_case.make_single_case_registry(case)
        manager = run_case.make_turn_manager(sealer=run_case.PlainSealer())
        continued = await continue_log(manager, registry.served[0], truncate_log(log, cut), STORED[log.id])
        assert continued[:cut] == events[:cut]
        assert drop_cached(check_stream(continued)) == drop_cached(events[-1]["response"]), f"cut after {cut} events"


async def test_damaged_conversation_is_told() -> None:
    case = next(case for case in UNDISTURBED if case.name == "one_call")
    log = (await run_tool_case(case)).run.log
    assert log is not None
    stored = decode_turn(STORED[log.id])
    assert stored.later is not None
    later = msgspec.structs.replace(stored.later, conversation_json=b"{")
    async with open_run(case) as second:
        with pytest.raises(ReplayError, match="the stored turn is unreadable"):
            await second.manager._factory.rebuild_turn(
                second.model, msgspec.structs.replace(stored, later=later), truncate_log(log, 2)
            )
