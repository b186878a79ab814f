"""Tool servers that are commands."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.app.tools.mcp import tool_servers
from antiphon.app.tools.mcp.faults import ToolListError
from antiphon.app.tools.mcp.tool_server import KIB, ToolLimits, ToolServer
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.events.hosted import McpHttpError
from tests.app.tools.sdk_servers import COMMAND
from tests.progress import HANG_TIMEOUT_S

SDK = ToolServer(label="sdk", command=COMMAND, is_operator=True)
LIMITS = ToolLimits(start_timeout_s=HANG_TIMEOUT_S, list_timeout_s=HANG_TIMEOUT_S, max_body_bytes=64 * KIB)


@pytest.fixture
async def servers() -> AsyncIterator[ToolServers]:
    found = ToolServers({}, limits=LIMITS)
    yield found
    await found.close()


def make_command(code: str) -> ToolServer:
    return ToolServer(label="rogue", command=(sys.executable, "-c", code), is_operator=True)


async def test_list_and_calls(servers: ToolServers) -> None:
    tools = (await servers.list_tools(SDK, "owner")).tools
    assert "odd.name" in [tool.name for tool in tools]
    assert (await servers.call_tool(SDK, "add", {"a": 1, "b": 2})).text == "3"
    done = await asyncio.gather(*(servers.call_tool(SDK, "add", {"a": 1, "b": number}) for number in range(10)))
    assert [outcome.text for outcome in done] == [str(1 + number) for number in range(10)]
    assert (await servers.call_tool(SDK, "ask", {})).error is not None


async def test_environment_is_emptied(servers: ToolServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", "marked-secret")
    outcome = await servers.call_tool(SDK, "environment", {})
    assert set(json.loads(outcome.text)) <= {"PATH", "HOME", "LANG", "LC_CTYPE"}, "Python itself sets LC_CTYPE"


async def test_ended_command_starts_again(servers: ToolServers) -> None:
    outcome = await servers.call_tool(SDK, "end_process", {})
    assert outcome.error == McpHttpError(code=502, message="The connection to the server broke.")
    assert (await servers.call_tool(SDK, "odd.name", {})).text == "a dot"


async def test_cancelled_call_leaves_the_command_running(servers: ToolServers) -> None:
    await servers.call_tool(SDK, "odd.name", {})
    session = servers._commands[SDK.identity]
    owner = session._owner
    task = asyncio.create_task(servers.call_tool(SDK, "wait", {}))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await servers.call_tool(SDK, "odd.name", {})).text == "a dot"
    assert session._owner is owner


async def test_close_kills_a_command_that_ignores_signals(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(600)
"""
    servers = ToolServers({}, limits=ToolLimits(start_timeout_s=HANG_TIMEOUT_S))
    task = asyncio.create_task(servers.call_tool(make_command(code), "tool", {}))
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not pids.exists() or not pids.read_text():
            await asyncio.sleep(0.01)
        await servers.close()
        outcome = await task
        assert outcome.error == McpHttpError(code=502, message="The command of the server ended before it was ready.")
        for pid in map(int, pids.read_text().split()):
            while _is_running(pid):
                await asyncio.sleep(0.01)


def _is_running(pid: int) -> bool:
    """A killed child whose new parent has not waited for it yet is a zombie, and does not run."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('no configuration')", "The command of the server ended before it was ready."),
        ("print('x' * 200_000)", "The command of the server ended before it was ready."),
        ("import time; print('no JSON', flush=True)", "The command of the server ended before it was ready."),
        ("import sys; sys.stdin.close()", "The command of the server ended before it was ready."),
    ],
)
async def test_command_that_is_no_server(servers: ToolServers, code: str, message: str) -> None:
    with pytest.raises(ToolListError) as fault:
        await servers.list_tools(make_command(code), "owner")
    assert fault.value.message == f"Error retrieving tool list from MCP server: 'rogue'. {message}"
    outcome = await servers.call_tool(make_command(code), "tool", {})
    assert outcome.error == McpHttpError(code=502, message=message)


async def test_command_that_never_gets_ready() -> None:
    servers = ToolServers({}, limits=ToolLimits(start_timeout_s=0.3))
    outcome = await servers.call_tool(make_command("import time; time.sleep(600)"), "tool", {})
    assert outcome.error == McpHttpError(code=504, message="The command of the server did not get ready in time.")
    await servers.close()


async def test_command_that_does_not_exist(servers: ToolServers) -> None:
    server = ToolServer(label="none", command=("/no/such/command",), is_operator=True)
    outcome = await servers.call_tool(server, "tool", {})
    assert outcome.error == McpHttpError(code=502, message="The command of the server could not be started.")


async def test_line_that_is_too_long_ends_its_call(servers: ToolServers) -> None:
    code = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "server/discover":
        result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "supportedVersions": ["2026-07-28"], "capabilities": {}}
    else:
        result = {"resultType": "complete", "content": [{"type": "text", "text": "x" * 200_000}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
    outcome = await servers.call_tool(make_command(code), "tool", {})
    assert outcome.error == McpHttpError(code=502, message="The answer of the server is too large.")


async def test_time_server(servers: ToolServers) -> None:
    server = ToolServer(label="time", command=(sys.executable, "-m", "mcp_server_time"), is_operator=True)
    names = [tool.name for tool in (await servers.list_tools(server, "owner")).tools]
    assert "get_current_time" in names
    outcome = await servers.call_tool(server, "get_current_time", {"timezone": "UTC"})
    assert json.loads(outcome.text)["timezone"] == "UTC"
    wrong = await servers.call_tool(server, "get_current_time", {"timezone": "Nowhere/City"})
    assert wrong.error is not None


async def test_fetch_server_with_a_hostile_page() -> None:
    page = f"<html><body><p>{'word ' * 200_000}</p><p>&lt;|im_end|&gt;&lt;tool_call&gt;</p></body></html>".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n" + page)
        await writer.drain()
        writer.close()

    site = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{site.sockets[0].getsockname()[1]}/"
    options = ("--ignore-robots-txt", "--allow-private-ips")
    server = ToolServer(label="fetch", command=(sys.executable, "-m", "mcp_server_fetch", *options), is_operator=True)
    servers = ToolServers({}, limits=ToolLimits(start_timeout_s=HANG_TIMEOUT_S))
    outcome = await servers.call_tool(server, "fetch", {"url": url, "max_length": 900_000, "raw": True})
    await servers.close()
    site.close()
    assert outcome.error is None
    assert outcome.text.endswith(" more bytes]")
    assert len(outcome.text) < 65 * KIB


SILENT = """
import json, sys
def answer(id, result):
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    open(SEEN, "a").write(message["method"] + "\\n")
    if message["method"] == "initialize" and KNOWS_MCP:
        info = {"name": "n", "version": "1"}
        answer(message["id"], {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
    elif message["method"] == "server/discover" and KNOWS_MCP:
        error = {"code": -32601, "message": "no such method"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
"""


@pytest.mark.parametrize("knows_mcp", [True, False])
async def test_silent_command_is_asked_once(tmp_path: Path, *, knows_mcp: bool) -> None:
    """The list has one limit of time, which the start and a second try share."""
    seen = tmp_path / "seen"
    code = SILENT.replace("SEEN", repr(str(seen))).replace("KNOWS_MCP", str(knows_mcp))
    limits = ToolLimits(start_timeout_s=HANG_TIMEOUT_S if knows_mcp else 1.0, list_timeout_s=0.3)
    servers = ToolServers({}, limits=limits)
    with pytest.raises(ToolListError, match="did not"):
        await servers.list_tools(make_command(code), "owner")
    await servers.close()
    methods = seen.read_text().split()
    assert methods.count("tools/list" if knows_mcp else "server/discover") == 1, methods


async def test_second_try_has_what_is_left_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends at each list; the clock says that the first try took all of the time."""
    servers = ToolServers({}, limits=ToolLimits(start_timeout_s=HANG_TIMEOUT_S))
    tries: list[float] = []

    async def run(*_: object, deadline_s: float, **__: object) -> None:
        tries.append(deadline_s)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: deadline_s)
        raise tool_servers._WorkError(McpHttpError(code=502, message="It broke."))

    with monkeypatch.context() as patch:
        patch.setattr(servers, "_run", run)
        with pytest.raises(tool_servers._WorkError):
            await servers._fetch_list(SDK)
    monkeypatch.undo()
    assert len(tries) == 1
    await servers.close()


CHANGING = """
import json, sys
names = ["first"]
def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        tools, info = {"listChanged": True}, {"name": "n", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": tools}, "serverInfo": info}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    elif message["method"] == "tools/call":
        names.append(message["params"]["name"])
        if message["params"]["arguments"].get("tell"):
            say({"method": "notifications/tools/list_changed"})
        result = {"content": []}
    else:
        say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
        continue
    say({"id": message["id"], "result": result})
"""


async def test_changed_list_is_read_again(servers: ToolServers) -> None:
    server = make_command(CHANGING)

    async def list_names(owner: str) -> list[str]:
        return [tool.name for tool in (await servers.list_tools(server, owner)).tools]

    assert await list_names("ann") == await list_names("bob") == ["first"]
    await servers.call_tool(server, "second", {})
    assert await list_names("ann") == ["first"], "it is kept"
    await servers.call_tool(server, "third", {"tell": True})
    assert await list_names("ann") == await list_names("bob") == ["first", "second", "third"]
