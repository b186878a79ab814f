"""LangChain, the AI SDK and OpenAI's SDK for Node read conversations that are compacted on the way."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.clients.node_install import copy_node_programs, run_node_script
from tests.clients.node_results import check_node_result
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.clients.reading_script import (
    AGAIN,
    ANSWER,
    ASKED,
    FILES,
    NUM_COMPACTIONS,
    PROMPT,
    TASK,
    THRESHOLD,
    make_reading_registry,
)
from tests.clients.sdk_helpers import Json, record_prompts
from tests.serving import RunningServer, serve

SERVER = partial(serve, make_reading_registry)
LANGCHAIN_RUNS = ["run", "stream, store False", "stream, previous_response_id"]
AI_SDK_RUNS = ["run", "run, store False", "stream", "stream, store False"]


@pytest.fixture(scope="module")
def prompts(server: RunningServer) -> list[str]:
    """All prompts of the module's server."""
    return record_prompts(server)


@pytest.mark.timeout(600)  # the first run installs packages
def test_langchain_reads_twenty_files(
    server: RunningServer, prompts: list[str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    task = json.dumps(TASK | {"url": server.url, "runs": LANGCHAIN_RUNS})
    prompts.clear()
    results = run_program(
        [install_python_clients("python"), PROGRAMS_FOLDER / "langchain_compaction.py", task], tmp_path
    )
    check_runs(server, prompts, results, LANGCHAIN_RUNS, subtests)


@pytest.mark.timeout(600)  # the first run installs packages
def test_ai_sdk_reads_twenty_files(
    node: Path, server: RunningServer, prompts: list[str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    folder = copy_node_programs()
    prompts.clear()
    try:
        task = json.dumps(TASK | {"url": server.url, "runs": AI_SDK_RUNS})
        results = run_program([node, folder / "ai_sdk_compaction.mjs", task], tmp_path)
    finally:
        shutil.rmtree(folder)
    check_runs(server, prompts, results, AI_SDK_RUNS, subtests)


def check_runs(
    server: RunningServer, prompts: list[str], results: Json, runs: list[str], subtests: pytest.Subtests
) -> None:
    """Checks that every run ends with the answers, and that all have the same prompts."""
    assert list(results) == runs
    for name, seen in results.items():
        with subtests.test(run=name):
            assert seen == {
                "text": ANSWER,
                "again": AGAIN,
                "paths": list(FILES),
                "compactions": NUM_COMPACTIONS,
            }, seen
    assert {record.status for record in server.access_records} == {200}
    size = len(prompts) // len(runs)
    first = prompts[:size]
    assert prompts == first * len(runs), "the prompts are the same with any storage of the history"
    assert sum(ASKED in prompt for prompt in first) == NUM_COMPACTIONS


def test_node_helper_reads_compacted_streams(node: Path, server: RunningServer, tmp_path: Path) -> None:
    items = [{"role": "user", "content": text} for text in ("Nothing but words. " * 600, PROMPT)]
    entry = {"type": "compaction", "compact_threshold": THRESHOLD}
    body: Json = {"model": "scripted", "input": items, "context_management": [entry], "stream": True}
    requests = {"stored": body, "background": body | {"background": True}, "unstored": body | {"store": False}}
    task = tmp_path / "task.json"
    cases = [{"name": name, "responses": request} for name, request in requests.items()]
    task.write_text(json.dumps({"url": server.url, "cases": cases}), encoding="utf-8")
    results = run_node_script(node, "read.mjs", task)
    for name in ("stored", "background"):
        check_node_result(results[name], server, fails=False)
    for name, seen in results.items():
        response = seen["responses"]
        assert response["raised"] is response["raisedAtTheEnd"] is None
        assert [item["type"] for item in response["final"]["output"]] == ["compaction", "message"], name
