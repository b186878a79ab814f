"""Lists and calls against servers that the SDK provides, in both eras of the protocol, over HTTP."""

import asyncio
import json
from typing import Any

import pytest
from mcp.server import MCPServer

from antiphon.app.lifecycle.malloc_trim import LARGE_BODY_BYTES, MemoryReleaser
from antiphon.app.tools.mcp.client_server import check_client_url, create_client_policy
from antiphon.app.tools.mcp.faults import ToolListError
from antiphon.app.tools.mcp.tool_server import ToolLimits, ToolServer, create_client_server
from antiphon.app.tools.mcp.tool_servers import ToolServers, check_extra
from antiphon.events.hosted import McpExecutionError, McpHttpError, McpProtocolError
from tests.app.tools.hostile_servers import COMPLETE, FRESH, TOOL, Request, answer_well, never, serve_raw
from tests.app.tools.sdk_servers import Seen, serve_sdk
from tests.progress import HANG_TIMEOUT_S

check_extra()
ERAS = pytest.mark.parametrize("is_legacy", [False, True], ids=["2026-07-28", "legacy"])


def make_server(url: str, **fields: Any) -> ToolServer:
    return ToolServer(label="test", url=url, is_operator=True, **fields)


@ERAS
async def test_list(*, is_legacy: bool) -> None:
    async with serve_sdk(is_legacy=is_legacy) as (url, seen):
        servers = ToolServers({})
        tools = {tool.name: tool for tool in (await servers.list_tools(make_server(url), "owner")).tools}
        await servers.close()
    assert {"add", "odd.name"} <= set(tools)
    assert tools["add"].description == "Adds two numbers."
    assert tools["add"].input_schema["required"] == ["a", "b"]
    assert (tools["add"].read_only, tools["odd.name"].read_only) == (True, None)
    expected = ["server/discover", "tools/list"]
    if is_legacy:
        expected[1:1] = ["initialize", "notifications/initialized"]
        expected.append("DELETE")
    assert seen.methods == expected, "messages of the server are not awaited: there is no GET"


@ERAS
async def test_calls(*, is_legacy: bool) -> None:
    async with serve_sdk(is_legacy=is_legacy) as (url, seen):
        servers = ToolServers({})
        server = make_server(url)
        assert (await servers.call_tool(server, "add", {"a": 1, "b": 2})).text == "3"
        seen.methods.clear()
        assert (await servers.call_tool(server, "odd.name", {})).text == "a dot"
        assert ("server/discover" in seen.methods) is False, "the era is known by now"
        assert "tools/list" not in seen.methods
        pieces = await servers.call_tool(server, "pieces", {})
        assert pieces.text == "a text\n[image: image/png]\n[link: page https://example.com/page]"
        assert pieces.links == ("https://example.com/page",)
        failed = await servers.call_tool(server, "fail", {})
        assert isinstance(failed.error, McpExecutionError)
        assert failed.text.startswith("The call failed: ")
        for name, arguments in (("nothing", {}), ("add", {"a": "x"})):
            outcome = await servers.call_tool(server, name, arguments)
            assert outcome.error is not None
        await servers.close()


@ERAS
async def test_headers_are_sent_with_every_request(*, is_legacy: bool) -> None:
    async with serve_sdk(is_legacy=is_legacy) as (url, seen):
        servers = ToolServers({})
        server = make_server(url, headers=(("Authorization", "Bearer abcdefgh"), ("X-Team", "blue")))
        await servers.call_tool(server, "odd.name", {})
        await servers.close()
    for headers in seen.headers:
        assert (headers["authorization"], headers["x-team"]) == ("Bearer abcdefgh", "blue")
        assert headers["accept-encoding"] == "identity"
        assert "cookie" not in headers


@ERAS
async def test_question_to_the_user_is_declined(*, is_legacy: bool) -> None:
    async with serve_sdk(is_legacy=is_legacy) as (url, _):
        servers = ToolServers({}, limits=ToolLimits(call_timeout_s=HANG_TIMEOUT_S))
        outcome = await servers.call_tool(make_server(url), "ask", {})
        await servers.close()
    assert outcome.error is not None


async def test_input_required_is_declined() -> None:
    async def reply(request: Request) -> None:
        params = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}
        asked = {"method": "elicitation/create", "params": params}
        await request.result({"resultType": "input_required", "inputRequests": {"a": asked}, "requestState": "x"})

    async with serve_raw(reply, "tools/call") as (url, seen):
        servers = ToolServers({})
        outcome = await servers.call_tool(make_server(url), "tool", {})
        await servers.close()
    assert outcome.error == McpHttpError(
        code=502, message="The tool asks its user for input, which is not possible here."
    )
    assert [method for method, _ in seen].count("tools/call") == 1


@ERAS
async def test_cancelled_call_ends_the_tool(*, is_legacy: bool) -> None:
    async with serve_sdk(is_legacy=is_legacy) as (url, seen):
        servers = ToolServers({})
        task = asyncio.create_task(servers.call_tool(make_server(url), "wait", {}))
        async with asyncio.timeout(HANG_TIMEOUT_S):
            await seen.running.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await seen.cancelled.wait()
        await servers.close()
    assert ("notifications/cancelled" in seen.methods) is is_legacy


async def _answer_legacy(request: Request) -> None:
    """An older server that knows a session, and answers neither a call nor its cancellation nor the end."""
    match request.method:
        case "server/discover":
            await request.send_body(b"", status="400 Bad Request")
        case "initialize":
            info = {"name": "n", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            await request.send_body(request.encode_result(result), headers="Mcp-Session-Id: abc\r\n")
        case "notifications/initialized":
            await request.send_body(b"", status="202 Accepted")
        case _:
            await never(request)


async def test_older_server_that_ignores_a_cancellation_is_left() -> None:
    called = asyncio.Event()

    async def reply(request: Request) -> None:
        if request.method == "tools/call":
            called.set()
        await _answer_legacy(request)

    async with serve_raw(reply, "*") as (url, seen):
        servers = ToolServers({}, limits=ToolLimits(cancel_grace_s=0.1))
        task = asyncio.create_task(servers.call_tool(make_server(url), "tool", {}))
        async with asyncio.timeout(HANG_TIMEOUT_S):
            await called.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await servers.close()
            while servers._tasks:
                await asyncio.sleep(0.01)
    assert "notifications/cancelled" in [method for method, _ in seen]


async def test_at_most_four_calls_at_once() -> None:
    async with serve_sdk(is_legacy=False) as (url, seen):
        servers = ToolServers({})
        server = make_server(url)
        done = await asyncio.gather(*(servers.call_tool(server, "count", {}) for _ in range(12)))
        await servers.close()
    assert {outcome.text for outcome in done} == {"counted"}
    assert seen.most_at_once <= 4


async def test_list_is_fetched_once_where_the_server_allows() -> None:
    async with serve_raw(answer_well, "*") as (url, seen):
        servers = ToolServers({})
        server = make_server(url)
        for owner in ("one", "one", "two"):
            await servers.list_tools(server, owner)
        await servers.list_tools(make_server(url, headers=(("X", "y"),)), "one")
        await servers.close()
    assert [method for method, _ in seen].count("tools/list") == 3, "one for each owner and each set of headers"


async def test_arguments_that_are_headers() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    sent: list[dict[str, str]] = []

    async def reply(request: Request) -> None:
        if request.method == "tools/list":
            await request.result({**FRESH, "tools": [{**TOOL, "inputSchema": schema}]})
            return
        if request.method == "tools/call":
            sent.append(request.headers)
        await answer_well(request)

    async with serve_raw(reply, "*") as (url, seen):
        servers = ToolServers({})
        server = make_server(url)
        await servers.list_tools(server, "owner")
        await servers.call_tool(server, "tool", {"region": "north"})
        await servers.close()
    assert sent[0]["mcp-param-region"] == "north"
    assert [method for method, _ in seen].count("tools/call") == 1


async def test_call_that_lacked_headers_is_not_repeated() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}

    async def reply(request: Request) -> None:
        if request.method == "tools/list":
            await request.result({**FRESH, "tools": [{**TOOL, "inputSchema": schema}]})
        elif request.method == "tools/call" and "mcp-param-region" not in request.headers:
            error = {"code": -32020, "message": "header mismatch"}
            await request.send_json({"jsonrpc": "2.0", "id": request.id, "error": error}, "400 Bad Request")
        else:
            await answer_well(request)

    async with serve_raw(reply, "*") as (url, seen):
        servers = ToolServers({})
        outcome = await servers.call_tool(make_server(url), "tool", {"region": "north"})
        assert outcome.error == McpProtocolError(code=-32020, message="header mismatch")
        assert [method for method, _ in seen].count("tools/call") == 1
        again = await servers.call_tool(make_server(url), "tool", {"region": "north"})
        assert again.text == "fine", "the model's next call has them"
        await servers.close()


async def test_lines_of_an_event_stream_are_limited() -> None:
    async def reply(request: Request) -> None:
        await request.start_sse()
        await request.send(b": still working\n\n" * 20)
        await request.send(b"data: " + request.encode_result({**COMPLETE, "content": []}) + b"\n\n")
        request.writer.close()

    async with serve_raw(reply, "tools/call") as (url, _):
        for max_lines, code in ((100, None), (39, 502)):
            servers = ToolServers({}, limits=ToolLimits(max_sse_lines=max_lines))
            outcome = await servers.call_tool(make_server(url), "tool", {})
            assert (outcome.error and outcome.error.code) == code  # type: ignore[union-attr]
            await servers.close()


async def test_token_in_a_list_is_removed() -> None:
    async def reply(request: Request) -> None:
        await request.result(
            {**FRESH, "tools": [{**TOOL, "description": f"You sent {request.headers['authorization']}"}]}
        )

    async with serve_raw(reply, "tools/list") as (url, _):
        servers = ToolServers({})
        server = make_server(url, headers=(("Authorization", "Bearer abcdefgh"),))
        tools = (await servers.list_tools(server, "owner")).tools
        await servers.close()
    assert tools[0].description == "You sent bearer [removed]"


async def test_server_that_changes_its_era_is_asked_again() -> None:
    async with serve_sdk(is_legacy=False) as (url, _):
        servers = ToolServers({})
        server = make_server(url)
        await servers.call_tool(server, "odd.name", {})
        servers._known[server.identity].mode = "legacy"
        assert (await servers.call_tool(server, "odd.name", {})).text == "a dot"
        await servers.close()


async def test_server_that_is_not_there() -> None:
    async with serve_raw(answer_well, "*") as (url, _):
        pass
    servers = ToolServers({})
    with pytest.raises(ToolListError) as fault:
        await servers.list_tools(make_server(url), "owner")
    expected = "Error retrieving tool list from MCP server: 'test'. The server could not be reached."
    assert fault.value.message == str(fault.value) == expected
    outcome = await servers.call_tool(make_server(url), "tool", {})
    assert outcome.error == McpHttpError(code=502, message="The server could not be reached.")
    await servers.close()


async def test_server_of_a_client_on_loopback() -> None:
    async with serve_raw(answer_well, "*") as (url, seen):
        host = url.removeprefix("http://").partition("/")[0]
        address = check_client_url(url, create_client_policy([host]))
        servers = ToolServers({})
        tools = (await servers.list_tools(create_client_server("mine", address, ()), "owner")).tools
        assert [tool.name for tool in tools] == ["tool"]
        count = len(seen)
        unchecked = ToolServer(label="mine", url=url, is_operator=False)
        with pytest.raises(ToolListError, match="not public"):
            await servers.list_tools(unchecked, "owner")
        assert len(seen) == count, "nothing is dialled unless somebody has checked it"
        await servers.close()


async def test_arguments_that_are_no_json() -> None:
    async with serve_raw(answer_well, "*") as (url, seen):
        servers = ToolServers({})
        outcome = await servers.call_tool(make_server(url), "tool", {"a": float("nan"), "b": object()})
        await servers.close()
    assert isinstance(outcome.error, McpHttpError)
    assert "tools/call" not in [method for method, _ in seen]


async def test_close_ends_calls() -> None:
    async with serve_sdk(is_legacy=False) as (url, seen):
        servers = ToolServers({})
        task = asyncio.create_task(servers.call_tool(make_server(url), "wait", {}))
        async with asyncio.timeout(HANG_TIMEOUT_S):
            await seen.running.wait()
            await servers.close()
            outcome = await task
    assert outcome.error == McpHttpError(code=502, message="This server stops.")


async def test_slow_end_of_a_session_costs_no_result() -> None:
    async def reply(request: Request) -> None:
        if request.method == "tools/call":
            await request.result({**COMPLETE, "content": [{"type": "text", "text": "done"}]})
        else:
            await _answer_legacy(request)

    async with serve_raw(reply, "*") as (url, seen):
        servers = ToolServers({}, limits=ToolLimits(cancel_grace_s=0.1))
        outcome = await servers.call_tool(make_server(url), "tool", {})
        await servers.close()
    assert outcome.text == "done"
    assert ("DELETE", "/mcp") in seen


def test_facade_knows_the_operators_servers() -> None:
    server = make_server("https://a.example/")
    assert ToolServers({"test": server}).servers == {"test": server}
    assert json.dumps(repr(ToolServers({"test": server}).servers)).count("a.example") == 0


async def test_memory_of_a_large_result_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it refers to itself, and stays until the next collection, which may be thousands of calls later."""
    sizes: list[int] = []
    monkeypatch.setattr(MemoryReleaser, "on_request_end", lambda _, body_bytes: sizes.append(body_bytes))

    def build(_: Seen) -> MCPServer:
        server = MCPServer("large")

        @server.tool()
        def repeat(count: int) -> str:
            return "x" * count

        return server

    async with serve_sdk(build, is_legacy=False) as (url, _):
        servers = ToolServers({})
        await servers.call_tool(make_server(url), "repeat", {"count": 10})
        await servers.call_tool(make_server(url), "repeat", {"count": LARGE_BODY_BYTES})
        await servers.close()
    small, large = sizes
    assert 10 < small < LARGE_BODY_BYTES <= large


async def test_change_of_the_list_is_heard_during_a_call() -> None:
    """A server over HTTP can tell it only then. The next request has the new list."""

    async def reply(request: Request) -> None:
        if request.method != "tools/call":
            await answer_well(request)
            return
        await request.start_sse()
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        result = {"jsonrpc": "2.0", "id": request.id, "result": {**COMPLETE, "content": []}}
        for message in (changed, result):
            await request.send(f"data: {json.dumps(message)}\n\n".encode())
        request.writer.close()

    async with serve_raw(reply, "*") as (url, seen):
        servers = ToolServers({})
        server = make_server(url)
        for _ in range(2):
            for _ in range(2):
                assert len((await servers.list_tools(server, "owner")).tools) == 1
            assert (await servers.call_tool(server, "tool", {})).error is None
        await servers.close()
    assert [method for method, _ in seen].count("tools/list") == 2
