"""Hosted tools over the WebSocket, in batches and in the background; and the endpoints that have none."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from tests.app.batches.batch_client import BatchClient, make_lines
from tests.app.server_helpers import wait_until
from tests.clients.hosted.tool_servers import (
    Json,
    ToolTraffic,
    find_items,
    list_kinds,
    send,
    serve_hosted,
    serve_tools,
    tool,
    write_call,
)
from tests.clients.lane_client import LaneClient, open_lanes
from tests.clients.sdk_helpers import post
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

WAIT = {"name": "wait", "inputSchema": {"type": "object"}}
SCRIPT: list[Json] = [
    {"name": "left", "when": ["Turn left"], "output": ["Left."]},
    {"name": "end", "when": ["The result of"], "output": ["Done."]},
    {"name": "refused", "when": ["did not approve"], "output": ["Then not."]},
    {"name": "read", "when": ["[read]"], "output": [write_call("read", {"text": "a"})]},
    {"name": "wait", "when": ["[wait]"], "output": [write_call("wait", {})]},
    {"name": "any", "output": ["Yes."]},
]
ASKING = tool(approval="always")


@pytest.fixture(scope="module")
def traffic() -> Iterator[ToolTraffic]:
    with serve_tools() as traffic:
        traffic.tools.append(WAIT)
        yield traffic


SERVER = partial(serve_hosted, SCRIPT)


@pytest.fixture(autouse=True)
def _start_again(traffic: ToolTraffic) -> None:
    traffic.calls.clear()
    traffic.running.clear()
    traffic.go_on.clear()


@contextmanager
def running_tool(traffic: ToolTraffic) -> Iterator[None]:
    """Waits until the tool `wait` runs. It ends when the block does."""
    assert traffic.running.wait(HANG_TIMEOUT_S)
    try:
        yield
    finally:
        traffic.go_on.set()


def test_loop_over_the_websocket(server: RunningServer, traffic: ToolTraffic) -> None:
    with open_lanes(server) as client:
        client.create("a", "[read]", tools=[tool()])
        done = client.finish("a")
        assert list_kinds(done) == ["mcp_list_tools", "mcp_call", "message"] and len(traffic.calls) == 1
        client.create("a", "[read]", tools=[tool()], previous_response_id=done["id"])
        assert list_kinds(client.finish("a", 2)) == ["message"], "the list of tools is known"
        for events in client.streams("a"):
            check_stream(events)


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("store", [True, False])
def test_approval_over_the_websocket(
    server: RunningServer, traffic: ToolTraffic, *, approve: bool, store: bool
) -> None:
    """Without a store, the connection has the response that asked."""
    with open_lanes(server) as client:
        client.create("a", "[read]", tools=[ASKING], store=store)
        asked = client.finish("a")
        [request] = find_items(asked, "mcp_approval_request")
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}
        body: Json = {"tools": [ASKING], "store": store, "previous_response_id": asked["id"]}
        client.create("a", [answer], **body)
        assert list_kinds(client.finish("a", 2)) == (["mcp_call", "message"] if approve else ["message"])
        assert len(traffic.calls) == approve
        for again in (answer, {**answer, "approve": not approve}):
            client.create("b", [again], **{**body, "store": store})
            status, _, param = client.receive_error("b")
            assert status == 400 and param in ("input", "previous_response_id")
        assert len(traffic.calls) == approve
        for events in client.streams("a"):
            check_stream(events)


def test_bad_tool_over_the_websocket(server: RunningServer) -> None:
    with open_lanes(server) as client:
        client.create("a", "[read]", tools=[tool("nobody")])
        assert client.receive_error("a") == (400, "mcp_server_not_allowed", "tools[0].server_url")
        client.create("a", "[read]", tools=[tool()])
        assert client.finish("a")["status"] == "completed"


def begin_waiting(client: LaneClient, lane: str = "a", **fields: Any) -> str:
    client.create(lane, "[wait]", tools=[tool()], **fields)
    while not any(event["type"] == "response.mcp_call_arguments.done" for event in client.events[lane]):
        client.receive()
    return str(client.events[lane][0]["response"]["id"])


def test_steer_while_a_tool_runs(server: RunningServer, traffic: ToolTraffic) -> None:
    """The call gets its result, then the turn ends and the steer is answered."""
    with open_lanes(server) as client:
        response_id = begin_waiting(client)
        with running_tool(traffic):
            steer = {"type": "response.steer", "previous_response_id": response_id, "input": "Turn left"}
            client.websocket.send(json.dumps(steer))
        first, second = client.finish("a"), client.finish("a", 2)
        assert list_kinds(first) == ["mcp_list_tools", "mcp_call"]
        assert find_items(first, "mcp_call")[0]["status"] == "completed"
        assert second["output"][-1]["content"][0]["text"] == "Left."
        for events in client.streams("a"):
            check_stream([event for event in events if not event["type"].startswith("response.steer.")])


def test_connection_that_closes_while_a_tool_runs(server: RunningServer, traffic: ToolTraffic) -> None:
    with open_lanes(server) as client:
        begin_waiting(client)
        assert traffic.running.wait(HANG_TIMEOUT_S)
        client.websocket.close()
        assert wait_until(HANG_TIMEOUT_S, lambda: server.context.turn_manager.num_running == 0)
    assert send(server, {"input": "[read]", "tools": [tool()]}).json()["status"] == "completed"


@pytest.mark.parametrize("action", ["cancel", "delete"])
def test_background_response_is_ended_while_a_tool_runs(
    server: RunningServer, traffic: ToolTraffic, action: str
) -> None:
    made = send(server, {"input": "[wait]", "tools": [tool()], "background": True}).json()
    url = f"{server.url}/responses/{made['id']}"
    assert traffic.running.wait(HANG_TIMEOUT_S)
    reply = post(f"{url}/cancel") if action == "cancel" else httpx.delete(url)
    assert reply.status_code == 200
    assert wait_until(HANG_TIMEOUT_S, lambda: server.context.turn_manager.num_running == 0)
    if action == "cancel":
        ended = httpx.get(url).json()
        assert ended["status"] == "cancelled"
        assert find_items(ended, "mcp_call")[0]["status"] == "incomplete"
        events = [
            json.loads(row[6:]) for row in httpx.get(f"{url}?stream=true").text.splitlines() if row[:7] == "data: {"
        ]
        check_stream(events)
    assert len(traffic.calls) == 1


def test_batch_with_tools_of_the_server(server: RunningServer, traffic: ToolTraffic) -> None:
    client = BatchClient(server)
    bodies = [
        {"model": "scripted", "input": "[read]", "tools": [tool()]},
        {"model": "scripted", "input": "[read]", "tools": [ASKING]},
        {"model": "scripted", "input": "[read]", "tools": [tool("nobody")]},
        {"model": "scripted", "input": "[read]", "tools": [tool(approval={"never": 5})]},
    ]
    batch = client.await_status(client.start(make_lines(bodies)))
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    output, errors = (
        {
            row["custom_id"]: row["response"]["body"]
            for row in map(json.loads, client.get(f"/files/{batch[name]}/content").text.splitlines())
        }
        for name in ("output_file_id", "error_file_id")
    )
    assert list_kinds(output["r0"]) == ["mcp_list_tools", "mcp_call", "message"]
    assert list_kinds(output["r1"]) == ["mcp_list_tools", "mcp_approval_request"]
    assert [errors[name]["error"]["param"] for name in ("r2", "r3")] == [
        "tools[0].server_url",
        "tools[0].require_approval.never",
    ]
    assert len(traffic.calls) == 1


USER = {"role": "user", "content": "[read]"}
WITHOUT_TOOLS: list[tuple[str, Json, str]] = [
    ("messages", {"messages": [USER], "max_tokens": 9, "tools": [tool()]}, "tools[0].type"),
    ("messages", {"messages": [USER], "max_tokens": 9, "mcp_servers": [{"type": "url", "url": "https://a.b/", "name": "kit"}]}, "mcp_servers"),
    ("messages", {"messages": [USER], "max_tokens": 9, "tools": [{"type": "mcp_toolset", "mcp_server_name": "kit"}]}, "tools[0].mcp_server_name"),
    ("completions", {"prompt": "[read]", "tools": [tool()]}, "tools"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param"), WITHOUT_TOOLS, ids=lambda value: str(value)[:30])
def test_other_endpoints_refuse_by_name(
    server: RunningServer, traffic: ToolTraffic, path: str, body: Json, param: str
) -> None:
    seen = traffic.connections
    reply = post(f"{server.url}/{path}", json={"model": "scripted", **body})
    assert reply.status_code == 400 and param in reply.text, reply.text
    assert traffic.connections == seen
