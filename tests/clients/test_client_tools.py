"""The client tools in agents of real libraries: the model calls, the client runs, the model reads.

The programs run commands and edit files in a temporary folder.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clients.node_install import copy_node_programs
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_in_turn, run_program
from tests.clients.sdk_helpers import Json, record_prompts
from tests.serving import RunningServer, serve
from tests.snapshots.builtin_cases import CREATE, DELETE, write_call, write_patch

UPDATE = "*** Update File: b.py\n@@ def greet():\n-    print('Hi')\n+    print('Hello')\n"
SHELL_CALL = write_call("shell", {"commands": ["cat c.txt; exit 3", "echo two"], "timeout_ms": 5000})
PATCH_CALL = write_patch(CREATE, UPDATE, DELETE)
SHELL_OUTPUT = "$ cat c.txt; exit 3\n[stderr]\ncat: c.txt: No such file or directory\n[exit code 3]\n$ echo two\ntwo"
PATCH_OUTPUT = "a.md: completed: edited a.md\nb.py: completed: edited b.py\nold.txt: completed: edited old.txt"
ONE_OUTPUT = "<tool_response>\ncompleted: edited a.md\n</tool_response>"
PROGRAM = {"type": "exec", "command": ["echo", "one"], "env": {}}
SEARCH_CALL = write_call("tool_search", {"query": "weather"})
FOUND = 'These tools can be called from here on:\n{"name": "get_weather"'
SCRIPT: list[dict[str, Any]] = [
    {"name": "seen", "when": [SHELL_CALL, SHELL_OUTPUT], "output": ["There is ", "no such file."]},
    {"name": "edited", "when": [PATCH_CALL, PATCH_OUTPUT], "output": ["Three ", "files."]},
    {"name": "edited one", "when": [write_patch(CREATE), ONE_OUTPUT], "output": ["One file."]},
    {"name": "failed", "when": [PATCH_CALL, "b.py: failed: "], "output": ["There are no files."]},
    {"name": "printed", "when": ['"name": "local_shell"', "<tool_response>\none\n"], "output": ["It printed one."]},
    {"name": "told", "when": ["rain in Oslo"], "output": ["It rains."]},
    {"name": "found", "when": [SEARCH_CALL, FOUND], "output": [write_call("get_weather", {"city": "Oslo"})]},
    {"name": "local shell", "when": ["Print it."], "output": [write_call("local_shell", {"command": ["echo", "one"]})]},
    {"name": "search", "when": ["Look it up."], "output": [SEARCH_CALL]},
    {"name": "shell", "when": ["Run it."], "output": ["<think>\nLook.\n</think>\n\nI look.\n\n", SHELL_CALL]},
    {"name": "patch", "when": ["Edit it."], "output": ["I edit.\n\n", PATCH_CALL]},
    {"name": "cut", "when": ["Cut it."], "output": [SHELL_CALL.partition("; exit")[0]], "finish": "length"},
    {"name": "lost", "output": ["The prompt lacks the call or its output."]},
]
TASK = {
    "model": "scripted",
    "prompts": {
        "shell": "Run it.",
        "apply_patch": "Edit it.",
        "local_shell": "Print it.",
        "tool_search": "Look it up.",
        "cut": "Cut it.",
    },
    "files": {"b.py": "def greet():\n    print('Hi')\n", "old.txt": "old\n"},
}
RUNS = ["run", "run, store False", "run, store True", "stream", "stream, store False", "stream, store True"]
OPERATIONS = [
    {"type": "create_file", "diff": "+# Title\n+\n", "path": "a.md"},
    {"type": "update_file", "diff": UPDATE.partition("\n")[2], "path": "b.py"},
    {"type": "delete_file", "path": "old.txt"},
]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RunningServer]]:
    """Servers without and with the setting `apply_patch_diffs`."""
    with ExitStack() as stack:
        yield [stack.enter_context(serve(SCRIPT, apply_patch_diffs=diffs)) for diffs in (False, True)]


@pytest.fixture(params=[0, 1], ids=["", "diffs"])
def any_server(servers: list[RunningServer], request: pytest.FixtureRequest) -> RunningServer:
    return servers[int(request.param)]


@pytest.fixture(scope="module")
def agents_runs(
    servers: list[RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Json, list[str]]]:
    """What the program of openai-agents has seen of each server, by its URL, and the prompts."""
    prompts = [record_prompts(server) for server in servers]
    source = (PROGRAMS_FOLDER / "agents_tools.py").read_text(encoding="utf-8")
    programs = [
        (source, json.dumps(TASK | {"url": server.url}), tmp_path_factory.mktemp("agents")) for server in servers
    ]
    printed = run_in_turn(install_python_clients("python"), programs, tmp_path_factory.mktemp("home"))
    for server in servers:
        check_statuses(server)
    return {
        server.url: (json.loads(text), list(each)) for server, text, each in zip(servers, printed, prompts, strict=True)
    }


@pytest.mark.timeout(600)  # the first run installs packages
def test_openai_agents_runs_commands_and_edits_files(
    any_server: RunningServer, agents_runs: dict[str, tuple[Json, list[str]]], subtests: pytest.Subtests
) -> None:
    results, prompts = agents_runs[any_server.url]
    shell, patch = expect_agents_shell(), expect_agents_patch()
    check_runs(results, {"shell": shell, "apply_patch": patch, "local_shell": expect_agents_program()}, subtests)
    hindered = results["hindered"]
    one, failed = hindered["one file a call"], hindered["without the files"]
    assert (one["calls"], one["text"], sorted(one["files"])) == (
        OPERATIONS[:1],
        "One file.",
        ["a.md", "b.py", "old.txt"],
    )
    assert (failed["operations"], failed["text"]) == ([["create_file", "a.md"]], "There are no files.")
    assert hindered["cut"] == hindered["cut stream"] == "ModelBehaviorError"
    assert len(prompts) == 2 * (3 * len(RUNS) + 2) + 2, "nothing was sent after a call that was cut"


def expect_agents_shell() -> Json:
    """Returns a run of openai-agents with a shell, which writes what each command printed as one text."""
    action = {"commands": ["cat c.txt; exit 3", "echo two"], "timeout_ms": 5000, "max_output_length": None}
    return {"calls": [action], "text": "There is no such file."}


def expect_agents_patch() -> Json:
    """Returns a run of openai-agents with an editor."""
    return {
        "calls": OPERATIONS,
        "outputs": ["edited a.md", "edited b.py", "edited old.txt"],
        "operations": [[each["type"], each["path"]] for each in OPERATIONS],
        "files": {"a.md": "# Title\n", "b.py": "def greet():\n    print('Hello')\n"},
        "text": "Three files.",
    }


def expect_agents_program() -> Json:
    """Returns a run of openai-agents with a program that it runs without a shell."""
    return {"calls": [PROGRAM], "outputs": ["one\n"], "text": "It printed one."}


@pytest.mark.timeout(600)  # the first run installs packages
def test_ai_sdk_runs_commands_and_edits_files(
    node: Path, any_server: RunningServer, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    prompts = record_prompts(any_server)
    folder = copy_node_programs()
    try:
        task = json.dumps(TASK | {"url": any_server.url})
        results = run_program([node, folder / "ai_sdk_tools.mjs", task], tmp_path)
    finally:
        shutil.rmtree(folder)
    outputs = [{"status": "completed", "output": f"edited {each['path']}"} for each in OPERATIONS]
    shell = expect_ai_sdk_shell()
    patch = {"calls": OPERATIONS, "outputs": outputs, "text": "Three files."}
    cut = {"outputs": [], "text": ""}
    program = {"calls": [PROGRAM], "outputs": [{"output": "one\n"}], "text": "It printed one."}
    search = {"calls": [{"query": "weather"}, {"city": "Oslo"}], "text": "It rains."}
    shells = {"shell": shell, "local_shell_environment": shell, "local_shell": program}
    expected = {**shells, "apply_patch": patch, "tool_search": search, "cut": cut}
    check_runs(results, expected, subtests)
    assert len(prompts) == (2 * 4 + 3 + 1) * len(RUNS), "nothing was sent after a call that was cut"
    skills = [prompt for prompt in prompts if "- notes: Keeps notes. (skills/notes)" in prompt]
    assert len(skills) == 2 * len(RUNS), "the model reads the skills"
    check_statuses(any_server)


def expect_ai_sdk_shell() -> Json:
    """Returns a run of the AI SDK with a shell."""
    printed = [("", "cat: c.txt: No such file or directory\n", 3), ("two\n", "", 0)]
    output = [
        {"stdout": stdout, "stderr": stderr, "outcome": {"type": "exit", "exitCode": code}}
        for stdout, stderr, code in printed
    ]
    action = {"commands": ["cat c.txt; exit 3", "echo two"], "timeoutMs": 5000}
    return {"calls": [action], "outputs": [{"output": output}], "text": "There is no such file."}


def check_runs(results: Json, expected: dict[str, Json], subtests: pytest.Subtests) -> None:
    """Checks that each run of each tool has what is expected."""
    for tool, run in expected.items():
        assert sorted(results[tool]) == RUNS
        for name, seen in results[tool].items():
            with subtests.test(tool=tool, run=name):
                assert {key: seen.get(key) for key in run} == run, seen


def check_statuses(server: RunningServer) -> None:
    """Checks that no request of a program was refused."""
    assert {record.status for record in server.access_records} == {200}
    server.access_records.clear()
