"""Tools that the server runs, in real clients to the end: OpenAI's SDKs, openai-agents, the AI SDK and LangChain."""

import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.node_install import copy_node_programs, run_node_script
from tests.clients.node_results import check_node_result, drop_helper_keys
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.clients.response_streams import ResponseStreamResult, check_response_result
from tests.clients.sdk_helpers import Json, dump_sdk_object, open_sdk, parse_events
from tests.clients.tool_servers import get, name_server, post, serve_sdk_tools
from tests.invariants import check_stream
from tests.serving import RunningServer, serve
from tests.snapshots.builtin_cases import write_call

PROMPT = "What is 19 plus 23?"
SUM = write_call("tools__add", {"a": 19, "b": 23})
READ = "<tool_response>\n42\n"
SCRIPT: list[dict[str, Any]] = [
    {"name": "again", "when": ["Say it again.", SUM, READ, "It is 42."], "output": ["I said 42."]},
    {"name": "forgotten", "when": ["Say it again."], "output": ["I forgot."]},
    {"name": "denied", "when": ["The user did not approve this call."], "output": ["Then not."]},
    {"name": "read", "when": [READ], "output": ["It is ", "42."]},
    {"name": "failed", "when": ["The call failed:"], "output": ["It failed."]},
    {"name": "fail", "when": ["Break."], "output": [write_call("tools__fail", {})]},
    {"name": "two", "when": ["Twice."], "output": [SUM, "\n", SUM]},
    {"name": "call", "when": [PROMPT], "output": ["<think>\nAdd.\n</think>\n\n", "I add.\n\n", SUM]},
    {"name": "lost", "output": ["The prompt lacks everything."]},
]
RUNS = ["run", "run, store False", "run, store True", "stream", "stream, store False", "stream, store True"]
NO_REQUEST: Json = {}
"""What the AI SDK sees if it answers a request that it does not send back."""
TIMES = ("created_at", "completed_at")


@pytest.fixture(scope="module")
def tool_url() -> Iterator[str]:
    with serve_sdk_tools() as (url, _):
        yield url


def serve_tools(tool_url: str) -> AbstractContextManager[RunningServer]:
    return serve(SCRIPT, tool_servers=(f"tools={tool_url}",))


SERVER = serve_tools


@pytest.fixture
def task(server: RunningServer, tool_url: str) -> str:
    task = {"url": server.url, "model": "scripted", "label": "tools", "server_url": tool_url, "prompt": PROMPT}
    return json.dumps(task)


@pytest.mark.timeout(600)  # the first run installs packages
def test_openai_agents_asks_its_user(server: RunningServer, task: str, tmp_path: Path) -> None:
    results = run_program([install_python_clients("python"), PROGRAMS_FOLDER / "agents_hosted.py", task], tmp_path)
    before = ["mcp_list_tools_item", "reasoning_item", "message_output_item"]
    answer = ["mcp_approval_request_item", "mcp_approval_response_item"]
    call, after = "tool_call_item", "message_output_item"
    asked = [["tools", "add", {"a": 19, "b": 23}]]
    check_runs(
        results,
        {
            "not asked": {"asked": [], "items": [*before, call, after], "text": "It is 42.", "again": "I said 42."},
            "yes": {
                "asked": asked,
                "items": [*before, *answer, call, after],
                "text": "It is 42.",
                "again": "I said 42.",
            },
            "no": {"asked": asked, "items": [*before, *answer, after], "text": "Then not.", "again": None},
        },
    )
    check_statuses(server, {200})


@pytest.mark.timeout(600)  # the first run installs packages
def test_ai_sdk_asks_its_user(server: RunningServer, node: Path, task: str, tmp_path: Path) -> None:
    folder = copy_node_programs()
    try:
        results = run_program([node, folder / "ai_sdk_hosted.mjs", task], tmp_path)
    finally:
        shutil.rmtree(folder)
    before, asked = ["reasoning", "text", "tool-call"], [["mcp.add", {"a": 19, "b": 23}]]
    called = {"outputs": ["42"], "text": "It is 42.", "again": "I said 42."}
    request = "tool-approval-request"
    expected: dict[str, Json] = {
        "not asked": {"asked": [], "kinds": [*before, "tool-result", "text"], **called, "text": "I add.It is 42."},
        "yes": {"asked": asked, "kinds": [*before, request, "tool-call", "tool-result", "text"], **called},
        "no": {"asked": asked, "kinds": [*before, request, "text"], "outputs": [], "text": "Then not.", "again": None},
    }
    for answer, unstored in {
        # Without a store, the SDK sends neither calls nor requests back: it refers to them by their ids.
        "not asked": expected["not asked"] | {"again": "I forgot."},
        "yes": NO_REQUEST,
        "no": NO_REQUEST,
    }.items():
        for run in ("run, store False", "stream, store False"):
            seen = results[answer].pop(run)
            assert "No approval request found" in seen["failure"] if unstored is NO_REQUEST else seen == unstored, seen
    check_runs(results, expected, [run for run in RUNS if "False" not in run])
    check_statuses(server, {200, 400})


@pytest.mark.timeout(600)  # the first run installs packages
def test_langchain_sends_the_items_again(server: RunningServer, task: str, tmp_path: Path) -> None:
    results = run_program([install_python_clients("python"), PROGRAMS_FOLDER / "langchain_hosted.py", task], tmp_path)
    items = ["mcp_list_tools", "reasoning", "text", "mcp_call", "text"]
    expected = {"items": items, "texts": ["I add.It is 42.", "I said 42."]}
    names = [f"{way}, {name}" for way in ("run", "stream") for name in ("resent", "resent, not stored", "named")]
    assert results == dict.fromkeys(names, expected)
    check_statuses(server, {200})


def check_runs(results: Json, expected: dict[str, Json], runs: list[str] = RUNS) -> None:
    """Checks that each run saw what is expected for the user's answer."""
    assert results.keys() == expected.keys()
    for answer, seen in results.items():
        assert sorted(seen) == sorted(runs)
        for name, run in seen.items():
            assert run == expected[answer], (answer, name)


def check_statuses(server: RunningServer, statuses: set[int]) -> None:
    """Checks the statuses of all requests of a program."""
    assert {record.status for record in server.access_records} == statuses
    server.access_records.clear()


# The stream helpers of OpenAI's SDKs

TOOLS = [name_server("tools")]
BODIES: dict[str, Json] = {
    "call": {"input": PROMPT, "tools": TOOLS},
    "two calls": {"input": "Twice.", "tools": TOOLS},
    "failure": {"input": "Break.", "tools": TOOLS},
    "request": {"input": PROMPT, "tools": [name_server("tools", "always")]},
    "approved": {"tools": [name_server("tools", "always")]},
    "refused": {"tools": [name_server("tools", "always")]},
    "cut": {"input": PROMPT, "tools": TOOLS, "max_output_tokens": 60},
}
LISTED = ["mcp_list_tools", "reasoning", "message"]
KINDS = {
    "call": [*LISTED, "mcp_call", "message"],
    "two calls": ["mcp_list_tools", "mcp_call", "mcp_call", "message"],
    "failure": ["mcp_list_tools", "mcp_call", "message"],
    "request": [*LISTED, "mcp_approval_request"],
    "approved": ["mcp_call", "message"],
    "refused": ["message"],
    "cut": [*LISTED, "mcp_call"],
}


def make_body(server: RunningServer, name: str) -> Json:
    """Returns a request. One with an answer has a request to approve of its own: each is good once."""
    body = {"model": "scripted", **BODIES[name]}
    if "input" in body:
        return body
    asked = post(f"{server.url}/responses", json={"model": "scripted", **BODIES["request"]}).json()
    answer = {"approval_request_id": asked["output"][-1]["id"], "approve": name == "approved"}
    return {
        **body,
        "previous_response_id": asked["id"],
        "input": [{"type": "mcp_approval_response", **answer}],
    }


@pytest.mark.parametrize("name", BODIES)
def test_stream_helper_for_python_reads_every_event(server: RunningServer, name: str) -> None:
    result = ResponseStreamResult()
    with open_sdk(server) as (client, replies):
        with client.responses.stream(**make_body(server, name)) as stream:
            result.events += stream
            try:
                result.final = stream.get_final_response()
            except RuntimeError as error:
                result.final_error = error
        check_response_result(result, server, replies)
    check_output(get(f"{server.url}/responses/{result.id}").json(), name)
    whole = post(f"{server.url}/responses", json=make_body(server, name)).json()
    if result.final is not None:
        assert drop_ids(dump_sdk_object(result.final)) == drop_ids(whole)


@pytest.fixture(scope="module")
def node_results(node: Path, server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Results of the helper for Node, by name of the body. One Node process reads all."""
    task = tmp_path_factory.mktemp("node") / "task.json"
    cases = [{"name": name, "responses": make_body(server, name)} for name in BODIES]
    task.write_text(json.dumps({"url": server.url, "cases": cases}), encoding="utf-8")
    return run_node_script(node, "read.mjs", task)


@pytest.mark.parametrize("name", BODIES)
def test_stream_helper_for_node_reads_every_event(node_results: Json, server: RunningServer, name: str) -> None:
    result = node_results[name]
    check_node_result(result, server, fails=False)
    final = result["responses"]["final"]
    check_output(final, name)
    whole = post(f"{server.url}/responses", json=make_body(server, name)).json()
    assert drop_ids(drop_helper_keys(final)) == drop_ids(whole)


def check_output(response: Json, name: str) -> None:
    """Checks the status and the items of a response."""
    assert response["status"] == ("incomplete" if name == "cut" else "completed")
    assert [item["type"] for item in response["output"]] == KINDS[name]
    if name == "approved":
        assert response["output"][0]["approval_request_id"].startswith("mcpr_")


def drop_ids(response: Json) -> Json:
    """Returns a response without what is new in each: ids and times."""
    kept = {key: value for key, value in response.items() if key not in ("id", *TIMES, "previous_response_id")}
    output = [
        {key: value for key, value in item.items() if key not in ("id", "approval_request_id")}
        for item in response["output"]
    ]
    return kept | {"output": output}


def test_every_limit_of_tokens_ends_a_legal_stream(server: RunningServer) -> None:
    """The limit holds for all rounds together, wherever it cuts."""
    body = make_body(server, "call")
    total = post(f"{server.url}/responses", json=body).json()["usage"]["output_tokens"]
    for limit in range(1, total + 2):
        request = {**body, "max_output_tokens": limit, "stream": True}
        response = check_stream(parse_events(post(f"{server.url}/responses", json=request).content), request)
        assert response["status"] == ("incomplete" if limit < total else "completed")
        assert response["usage"]["output_tokens"] == min(limit, total)
        assert {item.get("status") for item in response["output"][:-1]} <= {None, "completed"}
