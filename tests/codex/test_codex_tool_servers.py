"""The real Codex on a server that runs tools. Codex asks for a web search in each request, and knows no MCP items.

A wrapper adds the tool `mcp` to Codex's requests, since Codex runs MCP servers itself.
"""

import asyncio
import json
from collections.abc import Iterator

import pytest
from mcp.server import MCPServer

from antiphon.app.http.asgi import AsgiApp, AsgiMessage, AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.turns.timeouts import TurnTimeouts
from tests.app.tools.sdk_servers import Seen
from tests.clients.tool_servers import name_server, serve_sdk_tools
from tests.codex.codex_process import CodexCli
from tests.codex.recorder import TrafficRecorder
from tests.codex.replies import COMMAND, LAST_REPLY, NO_RETRIES, make_call, make_command_call, make_reply
from tests.conftest import StartServer

SILENT_S = 4.0
IDLE_TIMEOUT = "model_providers.antiphon.stream_idle_timeout_ms=2000"
KEEPALIVE_AFTER_S = 0.4


def build_tools(_: Seen) -> MCPServer:
    server = MCPServer("tools of Codex")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def rest() -> str:
        await asyncio.sleep(SILENT_S)
        return "well rested"

    return server


@pytest.fixture(scope="module")
def tool_url() -> Iterator[str]:
    with serve_sdk_tools(build_tools) as (url, _):
        yield url


def add_tool(app: AsgiApp) -> AsgiApp:
    """Returns `app` with the tool server in each request for a response."""

    async def run(scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        raw, has_more = b"", True
        while has_more:
            message = await receive()
            raw += message.get("body", b"")
            has_more = message.get("more_body", False)
        body = json.loads(raw)
        raw = json.dumps({**body, "tools": [*body["tools"], name_server("tools")]}).encode()
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        parts: list[AsgiMessage] = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive_changed() -> AsgiMessage:
            return parts.pop() if parts else await receive()

        scope = {**scope, "headers": [*headers, (b"content-length", str(len(raw)).encode())]}
        await app(scope, receive_changed, send)

    return run


def test_web_search_that_nobody_configured_stops_nothing(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, tool_url: str
) -> None:
    script = [
        make_reply("report", "It says antiphon-7391.", when="antiphon-7391"),
        make_reply("run", make_command_call(COMMAND)),
        LAST_REPLY,
    ]
    server = start_server(script, tool_servers=(f"tools={tool_url}",), wrap_app=recorder.wrap_app)
    run = codex.exec(server, "Run it.")
    assert run.exit_code == 0 and run.final_message == "It says antiphon-7391."
    assert len(recorder.turns) == 2
    for turn in recorder.turns:
        assert "web_search" in [tool["type"] for tool in turn.body["tools"]]
        assert turn.status == 200


def test_tools_of_the_server_and_of_codex_in_one_session(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, tool_url: str
) -> None:
    """The server's tool runs inside the first response, which ends with a call that Codex runs."""
    script = [
        make_reply("again", "I said it.", when="What did you say?"),
        make_reply("report", "It says antiphon-7391.", when="antiphon-7391"),
        make_reply("run", "It is 42.\n", make_command_call(COMMAND), when="<tool_response>\n42\n"),
        make_reply("add", "<think>\nAdd.\n</think>\n\n", make_call("tools__add", a=19, b=23)),
        LAST_REPLY,
    ]
    server = start_server(
        script, tool_servers=(f"tools={tool_url}",), wrap_app=lambda app: recorder.wrap_app(add_tool(app))
    )
    run = codex.exec(server, "Add, and run it.")
    assert run.exit_code == 0
    assert [item["text"] for item in run.items_of_type("agent_message")] == ["It is 42.", "It says antiphon-7391."]
    [command] = run.items_of_type("command_execution")
    assert command["aggregated_output"] == "antiphon-7391\n"
    first, _ = recorder.turns
    output = first.events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["mcp_list_tools", "reasoning", "mcp_call", "message", "function_call"]
    assert output[2]["output"] == "42"
    again = codex.exec(server, "What did you say?", resume=True)
    assert again.exit_code == 0 and again.final_message == "I said it."
    assert {turn.status for turn in recorder.turns} == {200}


REST_SCRIPT = [
    make_reply("rested", "At last.", when="well rested"),
    make_reply("rest", make_call("tools__rest")),
    LAST_REPLY,
]


def test_silent_tool_does_not_end_the_stream(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, tool_url: str
) -> None:
    server = start_server(
        REST_SCRIPT,
        tool_servers=(f"tools={tool_url}",),
        wrap_app=lambda app: recorder.wrap_app(add_tool(app)),
        timeouts=TurnTimeouts(keepalive_after_s=KEEPALIVE_AFTER_S),
    )
    run = codex.exec(server, "Rest.", *NO_RETRIES, IDLE_TIMEOUT)
    assert run.exit_code == 0 and run.final_message == "At last." and not run.events_of_type("error")
    [turn] = recorder.turns
    kinds = [event["type"] for event in turn.events]
    assert kinds.count("response.mcp_call.in_progress") > 5, "the first one and keep-alive events"


def test_silent_tool_without_keepalive_events(codex: CodexCli, start_server: StartServer, tool_url: str) -> None:
    """Shows that only keep-alive events make the previous test pass."""
    server = start_server(REST_SCRIPT, tool_servers=(f"tools={tool_url}",), wrap_app=add_tool)
    run = codex.exec(server, "Rest.", *NO_RETRIES, IDLE_TIMEOUT)
    assert run.exit_code == 1
    assert "idle timeout" in run.events_of_type("turn.failed")[0]["error"]["message"]
