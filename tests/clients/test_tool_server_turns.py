"""Turns whose tool works: cancelled, left, deleted, steered, shut down; and conversations that have such calls.

Each runs against the SDK's server in both eras of the protocol, which tells whether it saw the cancellation.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from antiphon.app.turns.timeouts import TurnTimeouts
from tests.app.tools.sdk_servers import Seen
from tests.clients.lane_client import open_lanes, text_of
from tests.clients.sdk_helpers import Json, parse_events, record_prompts, wait_until
from tests.clients.tool_servers import get, name_server, open_stream, post, serve_sdk_tools
from tests.conftest import StartServer
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve
from tests.snapshots.builtin_cases import write_call

SUM, WAIT = write_call("tools__add", {"a": 19, "b": 23}), write_call("tools__wait", {})
READ = "<tool_response>\n42\n"
SCRIPT: list[dict[str, Any]] = [
    {"name": "turned", "when": [WAIT, "Turn left."], "output": ["Left it is."]},
    {"name": "again", "when": ["Say it again.", SUM, READ, "It is 42."], "output": ["I said 42."]},
    {"name": "forgotten", "when": ["Say it again."], "output": ["I forgot."]},
    {"name": "sum and wait", "when": ["Add, then wait."], "output": [SUM, "\n", WAIT]},
    {"name": "read", "when": [READ], "output": ["It is 42."]},
    {"name": "now", "when": ["And now?"], "output": ["Nothing."]},
    {"name": "gone", "when": ["Wait.", "The call failed: "], "output": ["It is gone."]},
    {"name": "failed", "when": ["The call failed: "], "output": ["It failed."]},
    {"name": "fail", "when": ["Fail."], "output": [write_call("tools__fail", {})]},
    {"name": "words", "when": ["Add words."], "output": [write_call("tools__add", {"a": "x", "b": "y"})]},
    {"name": "nothing", "when": ["Add nothing."], "output": [write_call("tools__add", {})]},
    {"name": "wait", "when": ["Wait."], "output": [WAIT]},
    {"name": "sum", "when": ["Add."], "output": ["I add.\n\n", SUM]},
    {"name": "lost", "output": ["The prompt lacks everything."]},
]
TOOLS = [name_server("tools")]
YES: Json = {"type": "mcp_approval_response", "approve": True}
KEEPALIVE_AFTER_S = 0.1
SUM_ITEM, WAIT_ITEM = ("mcp_call", "completed", "42"), ("mcp_call", "incomplete", None)


@pytest.fixture(scope="module", params=[False, True], ids=["2026-07-28", "legacy"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[RunningServer, Seen]]:
    """A server of ours, and what its tool server sees."""
    with (
        serve_sdk_tools(is_legacy=request.param) as (url, seen),
        serve(
            SCRIPT, tool_servers=(f"tools={url}",), timeouts=TurnTimeouts(keepalive_after_s=KEEPALIVE_AFTER_S)
        ) as server,
    ):
        yield server, seen


@pytest.fixture
def server(place: tuple[RunningServer, Seen]) -> RunningServer:
    return place[0]


@pytest.fixture
def seen(place: tuple[RunningServer, Seen]) -> Seen:
    """What the tool server sees from here on."""
    place[1].running.clear()
    place[1].cancelled.clear()
    return place[1]


def make_request(text: Any, **fields: Any) -> Json:
    return {"model": "scripted", "input": text, "tools": TOOLS, **fields}


def begin_background(server: RunningServer, seen: Seen, text: str) -> str:
    """Starts a background response, and waits until the tool works. Returns the response's URL."""
    begun = post(f"{server.url}/responses", json=make_request(text, background=True)).json()
    wait_for(seen.running)
    return f"{server.url}/responses/{begun['id']}"


def wait_for(event: Any) -> None:
    assert wait_until(HANG_TIMEOUT_S, event.is_set)


def list_calls(response: Json) -> list[tuple[Any, ...]]:
    """Returns type, status and output of each item but the list."""
    return [
        (item["type"], item["status"], item.get("output"))
        for item in response["output"]
        if item["type"] != "mcp_list_tools"
    ]


@pytest.mark.parametrize(
    ("text", "calls"), [("Wait.", [WAIT_ITEM]), ("Add, then wait.", [SUM_ITEM, WAIT_ITEM])], ids=["one call", "two"]
)
def test_cancelled_response_cancels_the_tool(server: RunningServer, seen: Seen, text: str, calls: Any) -> None:
    url = begin_background(server, seen, text)
    cancelled = post(f"{url}/cancel").json()
    wait_for(seen.cancelled)
    assert (cancelled["status"], list_calls(cancelled)) == ("cancelled", calls)
    assert check_stream(parse_events(get(f"{url}?stream=true").content)) == get(url).json() == cancelled


def test_deleted_response_cancels_the_tool(server: RunningServer, seen: Seen) -> None:
    url = begin_background(server, seen, "Wait.")
    assert httpx.delete(url, timeout=HANG_TIMEOUT_S).json()["deleted"]
    wait_for(seen.cancelled)
    assert get(url).status_code == 404


def test_client_that_leaves_cancels_the_tool(server: RunningServer, seen: Seen) -> None:
    with open_stream(server, make_request("Wait.", stream=True)) as stream:
        events = list(stream_until(stream, seen))
    assert events[-1]["type"] == "response.mcp_call.in_progress"
    wait_for(seen.cancelled)


def stream_until(stream: Iterator[Json], seen: Seen) -> Iterator[Json]:
    """Yields the events up to the first keep-alive event while the tool works."""
    for event in stream:
        yield event
        if seen.running.is_set() and event["type"] == "response.mcp_call.in_progress":
            return


def test_closed_websocket_cancels_the_tool(server: RunningServer, seen: Seen) -> None:
    with connect(server.url.replace("http", "ws") + "/responses") as websocket:
        websocket.send(json.dumps({"type": "response.create", **make_request("Wait.")}))
        for _ in stream_until(iter(lambda: json.loads(websocket.recv(timeout=HANG_TIMEOUT_S)), None), seen):
            pass
    wait_for(seen.cancelled)


def test_shutdown_ends_the_call(seen: Seen, server: RunningServer, start_server: StartServer) -> None:
    events: list[Json] = []

    def read() -> None:
        with open_stream(stopping, make_request("Wait.", stream=True)) as stream:
            events.extend(stream)

    stopping = start_server(SCRIPT, tool_servers=server.context.settings.tool_servers)
    reader = threading.Thread(target=read)
    reader.start()
    wait_for(seen.running)
    stopping.stop()
    reader.join(HANG_TIMEOUT_S)
    wait_for(seen.cancelled)
    response = check_stream(events)
    assert (response["status"], list_calls(response)) == ("failed", [WAIT_ITEM])
    assert response["error"]["message"] == "The server is shutting down. Retry the request."


def test_list_is_told_once_in_a_conversation(server: RunningServer) -> None:
    url = f"{server.url}/responses"
    conversation = post(f"{server.url}/conversations", json={}).json()["id"]
    for fields in ({}, {"conversation": conversation}):
        first = post(url, json=make_request("Add.", **fields)).json()
        assert [item["type"] for item in first["output"]] == ["mcp_list_tools", "message", "mcp_call", "message"]
        chain = fields or {"previous_response_id": first["id"]}
        second = post(url, json=make_request("Say it again.", **chain)).json()
        assert [item["type"] for item in second["output"]] == ["message"]
        assert text_of(second) == "I said 42."
    items = get(f"{server.url}/conversations/{conversation}/items", params={"order": "asc"}).json()["data"]
    assert [item["type"] for item in items] == [
        "message", "mcp_list_tools", "message", "mcp_call", "message", "message", "message"
    ]  # fmt: skip


def test_output_is_sent_back_without_the_tools(server: RunningServer) -> None:
    """The model reads calls of tools that are no longer offered."""
    url, user = f"{server.url}/responses", {"role": "user", "content": "Add."}
    first = post(url, json=make_request([user])).json()
    follow_up = [user, *first["output"], {"role": "user", "content": "Say it again."}]
    for tools in (TOOLS, []):
        reply = post(url, json={"model": "scripted", "input": follow_up, "tools": tools})
        assert reply.status_code == 200, reply.text
        assert [item["type"] for item in reply.json()["output"]] == ["message"]
        assert text_of(reply.json()) == "I said 42."


def test_counted_tokens_are_those_of_the_first_round(server: RunningServer) -> None:
    counted = post(f"{server.url}/responses/input_tokens", json=make_request("Wait.")).json()["input_tokens"]
    paid = post(f"{server.url}/responses", json=make_request("Wait.", max_output_tokens=1)).json()["usage"]
    assert counted == paid["input_tokens"]


def test_tool_server_that_goes(start_server: StartServer) -> None:
    """A call that breaks off is told to the model; a list that cannot be read is an error of the request."""
    with ExitStack() as tools:
        url, seen = tools.enter_context(serve_sdk_tools())
        server = start_server(
            SCRIPT, tool_servers=(f"tools={url}",), timeouts=TurnTimeouts(keepalive_after_s=KEEPALIVE_AFTER_S)
        )
        request = make_request("Wait.", stream=True)
        with open_stream(server, request) as stream:
            events = list(stream_until(stream, seen))
            tools.close()
            response = check_stream([*events, *stream], request)
    _, call, message = response["output"]
    assert (call["status"], call["output"], call["error"]["type"]) == ("failed", None, "http_error")
    assert message["content"][0]["text"] == "It is gone."
    reply = post(f"{server.url}/responses", json=make_request("Add."))
    assert reply.status_code == 424
    error = reply.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("external_connector_error", "http_error", "tools")
    assert error["message"].startswith("Error retrieving tool list from MCP server: 'tools'.")


def test_steered_response_ends_after_the_tool(server: RunningServer) -> None:
    """The tool's output is in the prompt of what follows."""
    script = [
        {"name": "left", "when": [READ, "Turn left."], "output": ["Left it is."]},
        {"name": "sum", "when": ["Add."], "output": [SUM, {"pause": 0.2}, "\n", SUM]},
        {"name": "lost", "output": ["Lost."]},
    ]
    with serve(script, tool_servers=server.context.settings.tool_servers) as steered, open_lanes(steered) as client:
        client.create("a", "Add.", tools=TOOLS)
        while not any(event["type"] == "response.mcp_call.in_progress" for event in client.events["a"]):
            client.receive()
        parent = client.events["a"][0]["response"]["id"]
        frame = {"type": "response.steer", "previous_response_id": parent, "input": "Turn left."}
        client.websocket.send(json.dumps(frame))
        ended, successor = client.finish("a"), client.finish("a", 2)
    assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "steered"})
    assert set(list_calls(ended)) == {SUM_ITEM}
    assert text_of(successor) == "Left it is."


def run_turns(server: RunningServer, *bodies: Json) -> tuple[list[Json], list[str]]:
    """Runs turns, each after the one before it. Returns the responses, and the prompts of all rounds."""
    generate, prompts = server.engine.generate, record_prompts(server)
    responses: list[Json] = []
    try:
        for body in bodies:
            chain = {"previous_response_id": responses[-1]["id"]} if responses else {}
            if body["input"] == YES:
                body["input"] = [{**YES, "approval_request_id": responses[-1]["output"][-1]["id"]}]
            responses.append(post(f"{server.url}/responses", json=body | chain).json())
    finally:
        server.engine.generate = generate
    return responses, prompts


def test_approved_call_is_shown_once(server: RunningServer) -> None:
    """The prompt of the next turn continues where that of the approved call ended, so that the cache has it."""
    tools = [name_server("tools", "always")]
    bodies = [make_request(text, tools=tools) for text in ("Add.", YES, "Say it again.")]
    (_, approved, second), (first, read, again) = run_turns(server, *bodies)
    assert list_calls(approved)[0] == SUM_ITEM
    assert text_of(second) == "I said 42."
    assert read.startswith(first.removesuffix("<|im_start|>assistant\n"))
    assert read.count(SUM) == 1 and "was not run" not in read
    assert again.startswith(f"{read}It is 42.")


@pytest.mark.parametrize("text", ["Fail.", "Add words.", "Add nothing."])
def test_failed_call_is_shown_with_the_same_words_later(server: RunningServer, text: str) -> None:
    (failed, _), (_, read, again) = run_turns(server, make_request(text), make_request("And now?"))
    assert [item["status"] for item in failed["output"][1:]] == ["failed", "completed"]
    assert "<tool_response>\nThe call failed: " in read
    assert again.startswith(f"{read}It failed.")


def test_prewarm_has_no_output(server: RunningServer) -> None:
    """The list of tools is told in the turn that follows."""
    with open_lanes(server) as client:
        client.create("a", "Add.", tools=TOOLS, generate=False)
        prewarmed = client.finish("a")
        client.create("a", [], tools=TOOLS, previous_response_id=prewarmed["id"])
        response = client.finish("a", 2)
        for stream in client.streams("a"):
            check_stream(stream)
    assert (prewarmed["status"], prewarmed["output"]) == ("completed", [])
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "message", "mcp_call", "message"]
