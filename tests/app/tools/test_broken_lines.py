"""Lines of commands that are no messages: the call that such a line was to answer ends at once, and no other."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import pytest

from antiphon.app.tools.mcp.faults import ToolListError
from antiphon.app.tools.mcp.line_reader import (
    END_BYTES,
    MAX_SKIPPED_LIMITS,
    Line,
    RequestId,
    find_broken_answer,
    read_lines,
)
from antiphon.app.tools.mcp.tool_server import KIB, ToolLimits, ToolServer
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.events.hosted import McpHttpError
from tests.progress import HANG_TIMEOUT_S

LIMITS = ToolLimits(
    start_timeout_s=HANG_TIMEOUT_S,
    list_timeout_s=HANG_TIMEOUT_S,
    call_timeout_s=HANG_TIMEOUT_S,
    max_body_bytes=64 * KIB,
)
NO_MESSAGE = McpHttpError(code=502, message="The server sent what is no message of MCP.")
TOO_LARGE = McpHttpError(code=502, message="The answer of the server is too large.")
SERVER = """
import json, sys, threading, time
def say(text):
    sys.stdout.buffer.write(text if isinstance(text, bytes) else text.encode())
    sys.stdout.buffer.flush()
def answer(id, **result):
    say(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}) + "\\n")
held = []
for line in sys.stdin:
    message = json.loads(line)
    id, method = message.get("id"), message.get("method")
    if id is None:
        continue
    if method == "initialize":
        info = {"name": "n", "version": "1"}
        answer(id, protocolVersion="2025-06-18", capabilities={"tools": {}}, serverInfo=info)
    elif method == "tools/list":
        say(LIST % id)
    elif method != "tools/call":
        say(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}}) + "\\n")
    elif message["params"]["name"] == "hold":
        held.append(id)
    elif message["params"]["name"] == "release":
        for each in [*held, id]:
            answer(each, content=[{"type": "text", "text": "fine"}])
        held.clear()
    else:
        say(eval(message["params"]["arguments"]["line"]))
"""
"""Answers a call of `hold` at that of `release`, and any other with what its argument is as an expression."""
LIST = """'{"jsonrpc": "2.0", "id": %d, "result": {"tools": []}}\\n'"""


def make_server(listed: str = LIST) -> ToolServer:
    code = SERVER.replace("LIST %", f"{listed} %")
    return ToolServer(label="rogue", command=(sys.executable, "-c", code), is_operator=True)


@pytest.fixture
async def servers() -> AsyncIterator[ToolServers]:
    found = ToolServers({}, limits=LIMITS)
    yield found
    await found.close()


WITH_ID = [
    ("""'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\\\\ud800x"}]}}\\n' % id""", NO_MESSAGE),
    ("""'{"result":{"content":[{"type":"text","text":"\\\\ud800"}]},"id":"%d","jsonrpc":"2.0"}\\n' % id""", NO_MESSAGE),
    ("""'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"te\\n' % id""", NO_MESSAGE),
    ("""b'{"jsonrpc":"2.0","id":%d,"result":{"text":"\\xff\\xfe"}}\\n' % id""", NO_MESSAGE),
    ("""'{"result":{"content":[NaN, oops]}, "id": %d}\\n' % id""", NO_MESSAGE),
    ("""'{"jsonrpc":"2.0","id":%d,"result":{"text":"' % id + 'x' * 200_000 + '"}}\\n'""", TOO_LARGE),
    ("""'{"jsonrpc":"2.0","result":{"text":"' + 'x' * 200_000 + '"},"id":%d}\\n' % id""", TOO_LARGE),
    ("""'{"jsonrpc":"2.0","id":%d,"result":5}\\n' % id""", NO_MESSAGE),
]
WITHOUT_ID = [
    ("""'{"jsonrpc":"2.0","result":{"content":[{"type":"text"\\n'""", NO_MESSAGE),
    ("""'{"jsonrpc":"2.0","result":{"content":[],"x":"' + 'x' * 200_000 + '"}}\\n'""", TOO_LARGE),
    ("""'{"result":{"content":[]}}\\n'""", NO_MESSAGE),
    ("""'{"jsonrpc":"2.0","id":null,"result":{"content":[]}}\\n'""", NO_MESSAGE),
]
IGNORED = [
    "'tool called\\n'", "'{\"level\":30,\"id\":%d,\"msg\":\"called\"}\\n' % id", "'[]\\nnull\\n\\n{}\\n'", "b'\\xff\\xfe\\n'",
    """'{"jsonrpc":"2.0","method":"notifications/message","params":{"id":%d,"data":"\\\\ud800"}}\\n' % id""",
    """'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"' + 'x' * 200_000 + '"},"id":%d}\\n' % id""",
    """'{"jsonrpc":"2.0","id":4242,"result":{"content":[]}}\\n'""", "'x' * 200_000 + '\\n'",
]  # fmt: skip


@pytest.mark.parametrize(("line", "error"), [*WITH_ID, *WITHOUT_ID])
async def test_broken_answer_ends_its_call(servers: ToolServers, line: str, error: McpHttpError) -> None:
    """The command continues: it knows a call that it got before."""
    server = make_server()
    outcome = await servers.call_tool(server, "say", {"line": line})
    assert outcome.error == error
    held = asyncio.create_task(servers.call_tool(server, "hold", {}))
    while (await servers.call_tool(server, "release", {})).text != "fine" or not held.done():
        await asyncio.sleep(0)
    assert held.result().text == "fine"


@pytest.mark.parametrize(("line", "error"), WITH_ID)
async def test_broken_answer_ends_no_other_call(servers: ToolServers, line: str, error: McpHttpError) -> None:
    server = make_server()
    assert (await servers.call_tool(server, "release", {})).text == "fine"
    held = [asyncio.create_task(servers.call_tool(server, "hold", {})) for _ in range(2)]
    assert (await servers.call_tool(server, "say", {"line": line})).error == error
    while not all(task.done() for task in held):
        assert (await servers.call_tool(server, "release", {})).text == "fine"
    assert [task.result().text for task in held] == ["fine"] * 2


@pytest.mark.parametrize("line", IGNORED)
async def test_line_that_answers_nothing_is_ignored(servers: ToolServers, line: str) -> None:
    """Some commands print lines of a log between messages."""
    good = """'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"good"}]}}\\n' % id"""
    outcome = await servers.call_tool(make_server(), "say", {"line": f"[say({line}), {good}][1]"})
    assert outcome.text == "good"


async def test_broken_list_is_refused_at_once(servers: ToolServers) -> None:
    listed = """'{"jsonrpc": "2.0", "id": %d, "result": {"tools": [], "text": "\\\\ud800"}}\\n'"""
    with pytest.raises(ToolListError, match="no message of MCP"):
        await servers.list_tools(make_server(listed), "owner")


async def test_line_without_an_end_stops_the_command(servers: ToolServers) -> None:
    line = f"[say('x' * {64 * KIB}) for _ in range({MAX_SKIPPED_LIMITS + 2})][0]"
    outcome = await servers.call_tool(make_server(), "say", {"line": line})
    assert outcome.error == McpHttpError(code=502, message="The connection to the server broke.")
    assert (await servers.call_tool(make_server(), "release", {})).text == "fine"


class Pieces:
    """A stream that comes in pieces."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    async def read(self, _n: int) -> bytes:
        piece, self._data = self._data[: self._size], self._data[self._size :]
        return piece


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
async def test_lines_are_the_same_in_any_pieces(size: int) -> None:
    texts = [b"a", b"", b"b" * 20, b"c" * 21, b"d" * 1200, b"e"]
    lines = [line async for line in read_lines(Pieces(b"\n".join(texts), size), 20)]
    assert [line.is_cut for line in lines] == [False, False, False, True, True, False]
    assert [line.content for line in lines] == [text[:END_BYTES] for text in texts]
    assert [line.end for line in lines] == [b"", b"", b"", texts[3], texts[4][-END_BYTES:], b""]


async def test_line_that_never_ends_is_refused_at_its_limit() -> None:
    with pytest.raises(ValueError, match="does not end"):
        async for _ in read_lines(Pieces(b"x" * (MAX_SKIPPED_LIMITS * 20 + 1), 9), 20):
            pass


@pytest.mark.parametrize(
    ("content", "waiting", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":', (7, 8), 7),
        (b'{"jsonrpc":"2.0","id":7,"result":', (8, 9), None),
        (b'{"jsonrpc":"2.0","id":7,"result":', (8,), None),
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":', (7,), None),
        (b'{"result":{"id":7}, "id":8}x', (7, 8), None),
        (b'{"result":{"id":7', (7, 8), None),
        (b'{"jsonrpc":"2.0","error":', (7, 8), None),
        (b'{"jsonrpc":"2.0","error":', (7,), 7),
        (json.dumps({"result": {}, "id": True}).encode(), (1,), None),
    ],
)
def test_request_of_a_broken_answer(content: bytes, waiting: tuple[RequestId, ...], expected: RequestId | None) -> None:
    assert find_broken_answer(Line(content), waiting) == expected
