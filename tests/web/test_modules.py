"""The page's modules without markup, under `node --test`; the fold is compared with a plain one in Python."""

import json
import os
import subprocess
from pathlib import Path

from tests.clients.node_install import SCRIPT_TIMEOUT_S, install_node_sdk
from tests.snapshots.builtin_cases import BUILTIN_CASES, COMPACTION_CASES
from tests.snapshots.cases import CASES
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import read_responses
from tests.snapshots.tool_cases import TOOL_CASES
from tests.snapshots.tool_runs import run_tool_case
from tests.web.naive_fold import Json, snapshot_responses

MODULES = Path(__file__).with_name("modules")
FOLD_TESTS = "fold.test.mjs"


def run_node_tests(*files: Path, **variables: str) -> None:
    """Runs tests in Node. Fails with its report if one of them fails or none runs."""
    command = [install_node_sdk(), "--test", "--test-reporter=tap", *files]
    environment = os.environ | variables
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=SCRIPT_TIMEOUT_S, check=False
    )
    assert done.returncode == 0 and "# pass 0" not in done.stdout, done.stdout + done.stderr


def test_every_module() -> None:
    """In one run: each start of Node takes longer than most of these tests."""
    files = sorted(MODULES.glob("*.test.mjs"))
    run_node_tests(*(path for path in files if path.name != FOLD_TESTS))


async def test_response_as_of_every_event_of_every_case(tmp_path: Path) -> None:
    """The last response is the one that the server sent, so a fault that both folds share would show there."""
    streams = {
        case.name: (await read_responses(case)).data
        for case in (*CASES, *EXTRA_CASES, *BUILTIN_CASES, *COMPACTION_CASES)
        if "responses" in case.faces
    }
    streams |= {case.name: (await run_tool_case(case)).events for case in TOOL_CASES}
    fixture: list[Json] = [
        {"name": name, "events": events, "expected": snapshot_responses(events)}
        for name, events in streams.items()
        if events and events[0]["type"] == "response.created"
    ]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(fixture), encoding="utf-8")
    run_node_tests(MODULES / FOLD_TESTS, FOLD_FIXTURE=str(path))
