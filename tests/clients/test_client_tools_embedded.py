"""The tools `shell` and `apply_patch` on the embedded model, which was trained to run commands and to edit files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.clients.client_tools_page import PATCH_PROGRAM, PATCH_PROMPT, SHELL_PROGRAM, run_page_programs
from tests.clients.node_install import copy_node_programs, install_node_sdk
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.clients.sdk_helpers import Json, dump_sdk_object, get, open_sdk, post
from tests.codex.embedded_registry import needs_weights, serve_embedded
from tests.invariants import check_stream
from tests.serving import RunningServer

pytestmark = needs_weights
SHELL = {"type": "shell", "environment": {"type": "local"}}
PATCH = {"type": "apply_patch"}
SERVER = serve_embedded


@pytest.fixture(scope="module")
def agent_runs(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Runs of openai-agents with each tool: streamed and not, with and without storage."""
    command = "run `echo antiphon-7391`"
    prompts = {
        "shell": command,
        "local_shell": command,
        "apply_patch": "in the file notes.txt replace hello by goodbye",
    }
    task = {"url": server.url, "model": "antiphon", "prompts": prompts, "files": {"notes.txt": "hello\nAnna\n"}}
    program = [install_python_clients("python"), PROGRAMS_FOLDER / "agents_tools.py", json.dumps(task)]
    runs: Json = run_program(program, tmp_path_factory.mktemp("agents"))
    return runs


@pytest.mark.timeout(600)  # the first run installs packages
def test_agent_runs_the_command_and_reports_its_output(agent_runs: Json) -> None:
    runs = agent_runs["shell"]
    assert len(runs) == 6
    for name, run in runs.items():
        assert [call["commands"] for call in run["calls"]] == [["echo antiphon-7391"]], name
        assert "antiphon-7391" in run["text"].splitlines(), name


@pytest.mark.timeout(600)  # the first run installs packages
def test_agent_runs_the_program_and_reports_its_output(agent_runs: Json) -> None:
    runs = agent_runs["local_shell"]
    assert len(runs) == 6
    for name, run in runs.items():
        assert [call["command"] for call in run["calls"]] == [["bash", "-lc", "echo antiphon-7391"]], name
        assert "antiphon-7391" in run["text"].splitlines(), name


@pytest.mark.timeout(600)  # the first run installs packages
def test_ai_sdk_runs_commands_and_finds_tools(server: RunningServer, tmp_path: Path) -> None:
    """The model was not trained to search, so the tool choices say when it does."""
    command = "run `echo antiphon-7391`"
    prompts = {"shell": command, "local_shell": command, "tool_search": "What is the weather in Oslo?"}
    choices = {"tool_search": ["required", {"type": "tool", "toolName": "get_weather"}]}
    task = json.dumps({"url": server.url, "model": "antiphon", "prompts": prompts, "choices": choices})
    node, folder = install_node_sdk(), copy_node_programs()
    try:
        results = run_program([node, folder / "ai_sdk_tools.mjs", task], tmp_path)
    finally:
        shutil.rmtree(folder)
    assert {name: len(runs) for name, runs in results.items()} == {
        "shell": 6, "local_shell_environment": 6, "local_shell": 6, "tool_search": 6
    }  # fmt: skip
    for name in ("shell", "local_shell_environment"):
        for run in results[name].values():
            assert [call["commands"] for call in run["calls"]] == [["echo antiphon-7391"]], run
            assert "antiphon-7391" in run["text"].splitlines(), run
    for run in results["local_shell"].values():
        assert [call["command"] for call in run["calls"]] == [["bash", "-lc", "echo antiphon-7391"]], run
    for run in results["tool_search"].values():
        search, weather = run["calls"]
        assert list(search) == ["query"] and list(weather) == ["city"], run
        assert run["outputs"][1] == f"rain in {weather['city']}", run


@pytest.mark.timeout(600)  # the first run installs packages
def test_agent_edits_the_file_and_reports_the_outcome(agent_runs: Json) -> None:
    hindered = agent_runs["hindered"]
    runs = agent_runs["apply_patch"] | {"one file a call": hindered["one file a call"]}
    assert len(runs) == 7
    for name, run in runs.items():
        assert run["files"] == {"notes.txt": "goodbye\nAnna\n"}, name
        assert run["operations"] == [["update_file", "notes.txt"]], name
        assert run["text"] == "completed: edited notes.txt", name
    assert hindered["without the files"]["text"].startswith("failed: ")


@pytest.mark.timeout(600)  # the first run installs packages
def test_programs_of_the_page_run_on_the_embedded_model(server: RunningServer, tmp_path: Path) -> None:
    """One runs a command; the other creates, edits and deletes a file, and fails to delete it again."""
    prompts = [
        "create the file notes.txt with the text hello",
        "change hello to goodbye in notes.txt",
        "delete the file notes.txt",
        "delete the file notes.txt",
    ]
    tell_text = "notes = FOLDER / 'notes.txt'\nprint(notes.read_text() if notes.exists() else None)\n"
    programs = [(PATCH_PROGRAM.replace(PATCH_PROMPT, prompt) + tell_text, tmp_path) for prompt in prompts]
    shell, created, edited, deleted, failed = run_page_programs(
        [(SHELL_PROGRAM, tmp_path), *programs], server, tmp_path
    )
    assert shell == "hello\n"
    assert (created, edited, deleted) == ("Done.\nhello\n", "Done.\ngoodbye\n", "Done.\nNone\n")
    assert failed.startswith("failed: ")


@pytest.mark.parametrize("tools", [[SHELL, PATCH], [PATCH, SHELL]], ids=["shell first", "patch first"])
@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("run the command echo hello", {"commands": ["echo hello"]}),
        ("run `ls -a` and `pwd`", {"commands": ["ls -a", "pwd"]}),
        ("list the files in this folder", {"commands": ["ls"]}),
        ("create the file notes.txt with the text hello", ["create_file", "notes.txt", "+hello\n"]),
        ("in the file notes.txt replace hello by goodbye", ["update_file", "notes.txt", "@@\n-hello\n+goodbye\n"]),
        ("delete the file old.txt", ["delete_file", "old.txt", None]),
    ],
)
def test_model_chooses_the_tool(server: RunningServer, tools: list[Json], prompt: str, expected: Any) -> None:
    request = {"model": "antiphon", "input": prompt, "tools": tools}
    (call,) = [item for item in post(f"{server.url}/responses", json=request).json()["output"] if "call_id" in item]
    if call["type"] == "shell_call":
        assert call["action"] == expected | {"timeout_ms": None, "max_output_length": None}
    else:
        assert [call["operation"].get(key) for key in ("type", "path", "diff")] == expected


@pytest.mark.parametrize("prompt", ["run the command echo hello", "create the file notes.txt with the text hello"])
@pytest.mark.parametrize("choice", ["auto", {"type": "shell"}, {"type": "apply_patch"}], ids=["auto", "shell", "patch"])
def test_any_answer_is_a_whole_stream_and_stored(server: RunningServer, prompt: str, choice: Any) -> None:
    """Forced to call a tool that does not fit, the model may write text without meaning, which is cut."""
    body = {"model": "antiphon", "input": prompt, "tools": [SHELL, PATCH], "tool_choice": choice}
    with open_sdk(server) as (client, _):
        events = list(client.responses.create(**body, max_output_tokens=60, stream=True))
    response = check_stream([dump_sdk_object(event) for event in events])
    assert get(f"{server.url}/responses/{response['id']}").json() == response
    kinds = {item["type"] for item in response["output"]} - {"reasoning"}
    if isinstance(choice, dict):
        assert kinds <= {f"{choice['type']}_call"}
