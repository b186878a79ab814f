"""What hostile tool servers send: every row ends in time, with an error of this server's own words, and leaks nothing."""

import logging
import re
import traceback
from collections.abc import Iterator

import pytest
import structlog

from antiphon.app.tools.mcp.faults import ToolListError
from antiphon.app.tools.mcp.tool_server import KIB, ToolLimits, ToolServer
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.events.hosted import McpExecutionError
from tests.app.tools.hostile_servers import (
    COMPLETE,
    LISTS,
    PLENTY_S,
    RESULTS,
    SECRET,
    WIRE,
    ListRow,
    Request,
    ResultRow,
    WireRow,
    serve_raw,
)


@pytest.fixture(autouse=True)
def _no_leak(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No line of any log may hold the token, at any level."""
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as lines:
        yield
    assert SECRET not in caplog.text
    assert SECRET not in repr(lines)


def make_servers(limit_s: float = PLENTY_S) -> ToolServers:
    limits = ToolLimits(
        list_timeout_s=limit_s,
        call_timeout_s=limit_s,
        max_body_bytes=512 * KIB,
        max_sse_event_bytes=16 * KIB,
        cancel_grace_s=min(1, limit_s),
    )
    return ToolServers({}, limits=limits)


def make_server(url: str) -> ToolServer:
    return ToolServer(label="rogue", url=url, headers=(("Authorization", f"Bearer {SECRET}"),), is_operator=True)


LIST_CASES = [(row, "tools/list") for row in WIRE] + [(row, "*") for row in WIRE if row.code is not None]
"""An answer that is right for a list is none to the question about the protocol that comes first."""


@pytest.mark.parametrize(("row", "method"), LIST_CASES, ids=lambda value: getattr(value, "name", value))
async def test_wire_of_a_list(row: WireRow, method: str) -> None:
    async with serve_raw(row.reply, method) as (url, seen):
        servers = make_servers(row.limit_s)
        if row.code is None:
            assert len((await servers.list_tools(make_server(url), "owner")).tools) == 1
        else:
            with pytest.raises(ToolListError) as caught:
                await servers.list_tools(make_server(url), "owner")
            fault = caught.value
            assert fault.message.startswith("Error retrieving tool list from MCP server: 'rogue'. ")
            assert (row.message if row.code > 0 else f"MCP error {row.code}") in fault.message
            assert SECRET not in "".join(traceback.format_exception(fault)) + repr(fault)
            assert url not in fault.message
        await servers.close()
    assert all(path == "/mcp" for _, path in seen)


@pytest.mark.parametrize("row", WIRE, ids=lambda row: row.name)
async def test_wire_of_a_call(row: WireRow) -> None:
    async with serve_raw(row.reply, "tools/call") as (url, seen):
        servers = make_servers(row.limit_s)
        outcome = await servers.call_tool(make_server(url), "tool", {})
        await servers.close()
    if row.code is None:
        assert outcome.error is None
    else:
        assert outcome.error is not None
        assert not isinstance(outcome.error, McpExecutionError)
        assert outcome.error.code == row.code
        assert row.message in outcome.error.message
        assert outcome.text == f"The call failed: {outcome.error.message} (code {outcome.error.code})"
    assert SECRET not in repr(outcome)
    assert [method for method, _ in seen].count("tools/call") == 1, "a call is never repeated"
    assert all(path == "/mcp" for _, path in seen)


@pytest.mark.parametrize("row", LISTS, ids=lambda row: row.name)
async def test_list(row: ListRow) -> None:
    async with serve_raw(row.reply, "tools/list") as (url, _):
        servers = make_servers()
        if row.names is None:
            with pytest.raises(ToolListError, match=row.message):
                await servers.list_tools(make_server(url), "owner")
        else:
            found = await servers.list_tools(make_server(url), "owner")
            tools = found.tools
            assert row.left_out is None or tuple(tool.name for tool in found.left_out) == row.left_out
            assert all(tool.reason.startswith(("its ", "an earlier tool")) for tool in found.left_out)
            assert tuple(tool.name for tool in tools) == row.names
            assert not any("\0" in tool.description or "\x1b" in tool.description for tool in tools)
        await servers.close()


@pytest.mark.parametrize("row", RESULTS, ids=lambda row: row.name)
async def test_result(row: ResultRow) -> None:
    async def reply(request: Request) -> None:
        await request.result({**COMPLETE, **row.result})

    async with serve_raw(reply, "tools/call") as (url, _):
        servers = make_servers()
        outcome = await servers.call_tool(make_server(url), "tool", {})
        await servers.close()
    assert re.fullmatch(row.text, outcome.text, re.DOTALL)
    assert isinstance(outcome.error, McpExecutionError) == row.is_error
    assert SECRET not in repr(outcome)
