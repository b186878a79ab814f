"""An agent of openai-agents finishes a task that is longer than its context: compactions keep what it needs."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.clients.reading_script import (
    AGAIN,
    ANSWER,
    ASKED,
    FILES,
    NUM_COMPACTIONS,
    NUM_FILES,
    TASK,
    THRESHOLD,
    make_reading_registry,
)
from tests.clients.sdk_helpers import record_prompts
from tests.serving import RunningServer, serve

SERVER = partial(serve, make_reading_registry)
HISTORIES = {
    "kept by the library": ["run", "stream"],
    "not stored, or dropped": ["extra_body, store False", "stream, drops"],
    "kept by the server": ["previous_response_id", "stream, previous_response_id"],
}
"""The runs of the program, by what keeps the history."""


@pytest.fixture(scope="module")
def prompts(server: RunningServer) -> list[str]:
    """All prompts of the module's server."""
    return record_prompts(server)


@pytest.mark.timeout(600)  # the first run installs packages
def test_agent_reads_twenty_files(
    server: RunningServer, prompts: list[str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    runs = [run for history in HISTORIES.values() for run in history]
    task = json.dumps(TASK | {"url": server.url, "runs": runs})
    results = run_program([install_python_clients("python"), PROGRAMS_FOLDER / "agents_compaction.py", task], tmp_path)
    assert list(results) == runs
    for name, seen in results.items():
        with subtests.test(run=name):
            assert (seen["text"], seen["again"], seen["paths"]) == (ANSWER, AGAIN, list(FILES)), seen
            assert seen["compactions"] == seen["items"] == NUM_COMPACTIONS
            all_items, kept_items = seen["tokens"]
            assert all_items == kept_items < THRESHOLD, "what a client may drop is no part of the prompt"
            assert seen["num_dropped"] > NUM_FILES
    assert {record.status for record in server.access_records} == {200}
    size = NUM_FILES + NUM_COMPACTIONS + 2
    first = prompts[:size]
    assert prompts == first * len(runs), "the prompts are the same with any storage of the history"
    assert sum(ASKED in prompt for prompt in first) == NUM_COMPACTIONS
