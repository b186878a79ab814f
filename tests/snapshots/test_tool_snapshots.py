"""Snapshots of turns in which the server runs tools. The order of events of each item is that of captured streams."""

import json
from itertools import pairwise

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.invariants import check_stream
from tests.snapshots import event_lines
from tests.snapshots.snapshot_files import TOOL_SNAPSHOT_FOLDER, ToolSnapshot
from tests.snapshots.tool_cases import TOOL_CASES
from tests.snapshots.tool_runs import Reply, ToolCase, ToolCaseResult, run_tool_case

EACH_TOOL_CASE = pytest.mark.parametrize("case", TOOL_CASES, ids=lambda case: case.name)


@pytest.fixture
def tool_snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(ToolSnapshot)


@EACH_TOOL_CASE
@pytest.mark.filterwarnings(r"ignore:\s*Can not relate snapshot name")  # files are named after cases, not after tests
async def test_tool_case(case: ToolCase, tool_snapshot: SnapshotAssertion) -> None:
    result = await run_tool_case(case)
    if result.error is None:
        check_stream(result.events)
    assert format_tool_case(case, result) == tool_snapshot(name=case.name)


def test_every_tool_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in TOOL_CASES]
    assert len(set(names)) == len(names)
    assert {path.stem for path in TOOL_SNAPSHOT_FOLDER.glob("*.txt")} == set(names)


def format_tool_case(case: ToolCase, result: ToolCaseResult) -> str:
    """Returns the case, its events, the calls of tools, and what each round's prompt adds to the one before."""
    lines = [f"# {case.name.replace('_', ' ')}" + (f": {case.comment}" if case.comment else "")]
    lines += [f"# after: {case.earlier.name.replace('_', ' ')}"] if case.earlier else []
    for number, reply in enumerate(case.rounds, 1):
        lines += [f"# round {number} of the model ({case.dialect}):", *_format_reply(reply)]
    lines += [f"# the request: {json.dumps(case.request)}"] if case.request else []
    lines += ["", "Responses"]
    numbers = event_lines.IdNumbers()
    lines += [event_lines.format_event(event, numbers) for event in result.events]
    if result.error is not None:
        lines += [f"HTTP {result.error.status} {numbers.replace_ids(result.error.encoded_body.decode())}"]
    lines += ["", "Calls of the tool server"]
    lines += [f"  {name} {json.dumps(given)}" for name, given in result.run.servers.calls[result.num_earlier_calls :]] or ["  none"]  # fmt: skip
    lines += ["  cancelled"] if result.run.servers.num_cancelled else []
    for number, text in enumerate(_list_added_texts(result), 1 if case.earlier else 2):
        lines += ["", f"Prompt of round {number}, after the one before"]
        lines += [f"  {line}" for line in numbers.replace_ids(text).splitlines()]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _format_reply(reply: Reply) -> list[str]:
    lines = [f"#   {json.dumps(step, ensure_ascii=False)}" for step in reply.output]
    return [*lines, "#   and is cut by the token limit"] if reply.finish == "length" else lines


def _list_added_texts(result: ToolCaseResult) -> list[str]:
    """Returns what each prompt adds to the one before, which may be that of an earlier turn."""
    prompts = result.run.read_prompts()[max(result.num_earlier_jobs - 1, 0) :]
    added = []
    for before, after in pairwise(prompts):
        assert after.startswith(before), "nothing that the engine has computed changes"
        added.append(after.removeprefix(before))
    return added
