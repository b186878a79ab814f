"""The programs and items of docs/client-tools.md."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.clients.client_tools_page import (
    LOCAL_SHELL_LINES,
    PAGE,
    PATCH_PROGRAM,
    SEARCH_PROGRAM,
    SHELL_PROGRAM,
    find_page_blocks,
    make_page_registry,
    run_page_programs,
)
from tests.clients.sdk_helpers import Json, post
from tests.serving import RunningServer, serve

SERVER = partial(serve, make_page_registry)
ITEMS = [json.loads(block) for block in find_page_blocks("json")]
SHELL_TOOL, SHELL_CALL, SHELL_OUTPUT, UPDATE_CALL, CREATE_CALL, PATCH_OUTPUT = ITEMS[:6]
LOCAL_SHELL_CALL, LOCAL_SHELL_OUTPUT, SEARCH_CALL = ITEMS[6:]


def write_local_shell_program() -> str:
    """Returns the program with a shell, with the lines of the page for a local shell in it."""
    lines = SHELL_PROGRAM.splitlines(keepends=True)
    (agent,) = [index for index, line in enumerate(lines) if line.startswith("agent = ")]
    return "".join((*lines[:agent], LOCAL_SHELL_LINES, *lines[agent + 1 :]))


@pytest.mark.timeout(600)  # the first run installs packages
def test_programs_print_what_the_page_says(server: RunningServer, tmp_path: Path) -> None:
    edited = tmp_path / "edited"
    edited.mkdir()
    (edited / "hello.py").write_text("def greet():\n    print('Hi')\n")
    programs = [
        (SHELL_PROGRAM, tmp_path),
        (write_local_shell_program(), tmp_path),
        (PATCH_PROGRAM, edited),
        (SEARCH_PROGRAM, tmp_path),
    ]
    assert run_page_programs(programs, server, tmp_path) == [
        "hello\n", "hello\n", "Done: it is welcome() now.\n", "It rains in Oslo.\n"
    ]  # fmt: skip
    files = {path.name: path.read_text() for path in edited.iterdir()}
    assert files == {"hello.py": "def welcome():\n    print('Hi')\n", "notes.txt": "greet is welcome now."}


def create_response(server: RunningServer, **fields: object) -> Json:
    """Sends a request. Returns the reply."""
    reply: Json = post(f"{server.url}/responses", json={"model": "antiphon", **fields}).json()
    return reply


def replace_ids(item: Json, ids: Json) -> Json:
    """Returns an item with the ids of another one."""
    return item | {key: ids[key] for key in ("id", "call_id")}


def test_items_are_as_shown(server: RunningServer) -> None:
    prompt = "run the command echo hello"
    (call,) = create_response(server, input=prompt, tools=[SHELL_TOOL])["output"]
    assert replace_ids(call, SHELL_CALL) == SHELL_CALL
    history = [{"role": "user", "content": prompt}, call, SHELL_OUTPUT | {"call_id": call["call_id"]}]
    assert create_response(server, input=history, tools=[SHELL_TOOL])["output"][0]["content"][0]["text"] == "hello"
    tools: list[Json] = [{"type": "local_shell"}]
    (call,) = create_response(server, input=prompt, tools=tools)["output"]
    assert replace_ids(call, LOCAL_SHELL_CALL) == LOCAL_SHELL_CALL
    history = [{"role": "user", "content": prompt}, call, LOCAL_SHELL_OUTPUT | {"call_id": call["call_id"]}]
    assert create_response(server, input=history, tools=tools)["output"][0]["content"][0]["text"] == "hello"
    tools = [{"type": "tool_search", "execution": "client"}]
    (call,) = create_response(server, input="How is the weather in Oslo?", tools=tools)["output"]
    assert replace_ids(call, SEARCH_CALL) == SEARCH_CALL
    patch = {"type": "apply_patch"}
    prompt = "Rename greet() to welcome() in hello.py."
    update, create = create_response(server, input=prompt, tools=[patch])["output"]
    assert [replace_ids(update, UPDATE_CALL), replace_ids(create, CREATE_CALL)] == [UPDATE_CALL, CREATE_CALL]
    outputs = [PATCH_OUTPUT | {"call_id": each["call_id"]} for each in (update, create)]
    history = [{"role": "user", "content": prompt}, update, create, *outputs]
    (message,) = create_response(server, input=history, tools=[patch])["output"]
    assert message["content"][0]["text"] == "Done: it is welcome() now."


@pytest.mark.parametrize("environment", ["container_auto", "container_reference"])
def test_environments_of_the_server_are_refused(server: RunningServer, environment: str) -> None:
    assert f"`{environment}`" in PAGE
    error = create_response(server, input="Hi", tools=[{"type": "shell", "environment": {"type": environment}}])[
        "error"
    ]
    assert (error["code"], error["param"]) == ("invalid_value", "tools[0].environment.type")


def test_one_file_a_call_without_parallel_calls(server: RunningServer) -> None:
    patch = {"type": "apply_patch"}
    reply = create_response(server, input="Rename greet()", tools=[patch], parallel_tool_calls=False)
    assert [item["operation"]["path"] for item in reply["output"]] == ["hello.py"]
