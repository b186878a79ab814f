"""Why the turn of each case ends: one line for each case, in one snapshot."""

import pytest
from syrupy.assertion import SnapshotAssertion

from antiphon.app.turn_types.event_log import EventLog
from tests.snapshots.builtin_cases import BUILTIN_CASES, COMPACTION_CASES
from tests.snapshots.cases import CASES
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import read_chat, read_responses
from tests.snapshots.snapshot_files import CaseSnapshot
from tests.snapshots.tool_cases import TOOL_CASES
from tests.snapshots.tool_runs import run_tool_case


def describe_ending(name: str, log: EventLog | None) -> str:
    """Returns the line of a case."""
    if log is None:
        return f"{name}: refused before the first event"
    assert log.stats is not None and log.stats.ending is not None, name
    ending, stats = log.stats.ending, log.stats
    assert stats.times.ended is not None and stats.status == str(log.response.status), name
    return f"{name}: {ending.cause}{ending.detail and f' {ending.detail}'}, {stats.status}"


@pytest.mark.filterwarnings(r"ignore:\s*Can not relate snapshot name")  # as the files of the cases
async def test_endings_of_all_cases(snapshot: SnapshotAssertion) -> None:
    lines = ["Cases"]
    for case in (*CASES, *EXTRA_CASES, *BUILTIN_CASES, *COMPACTION_CASES):
        read = read_responses if "responses" in case.faces else read_chat
        lines.append(describe_ending(case.name, (await read(case)).log))
    lines += ["", "Cases with tools that the server runs"]
    for tool_case in TOOL_CASES:
        lines.append(describe_ending(tool_case.name, (await run_tool_case(tool_case)).run.log))
    assert "\n".join(lines) + "\n" == snapshot.use_extension(CaseSnapshot)(name="endings_of_all_cases")
