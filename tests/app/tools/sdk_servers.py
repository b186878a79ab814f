"""Tool servers written with the `mcp` SDK: on loopback for both eras of the protocol, and as a command."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp import types
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send


@dataclass
class Seen:
    """What a server has seen."""

    methods: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    running: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the tool `wait`."""
    connections: Collection[object] = ()
    """Connections that are open now."""
    most_at_once: int = 0
    at_once: int = 0


class _AskedName(BaseModel):
    name: str


def build_server(seen: Seen) -> MCPServer:
    server = MCPServer("test tools")

    @server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool(name="odd.name")
    def odd_name() -> str:
        return "a dot"

    @server.tool()
    def fail() -> str:
        raise ValueError("the tool is broken")

    @server.tool()
    async def wait() -> str:
        """Waits until it is released or cancelled."""
        seen.running.set()
        try:
            await asyncio.wait_for(seen.released.wait(), 600)
        finally:
            seen.cancelled.set()
        return "done"

    @server.tool()
    async def count() -> str:
        seen.at_once += 1
        seen.most_at_once = max(seen.most_at_once, seen.at_once)
        await asyncio.sleep(0.02)
        seen.at_once -= 1
        return "counted"

    @server.tool()
    def pieces() -> list[Any]:
        return [
            types.TextContent(type="text", text="a text"),
            types.ImageContent(type="image", data="AAAA", mime_type="image/png"),
            types.ResourceLink(type="resource_link", name="page", uri="https://example.com/page"),
        ]

    @server.tool()
    async def ask(context: Context) -> str:
        answer = await context.elicit("What is your name?", _AskedName)
        return str(answer)

    @server.tool()
    def environment() -> str:
        return json.dumps(sorted(os.environ))

    @server.tool()
    def end_process() -> str:
        os._exit(3)

    return server


def _record(app: ASGIApp, seen: Seen, *, is_legacy: bool) -> ASGIApp:
    """Records methods and headers. A legacy server does not know `server/discover`."""

    async def record(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        seen.headers.append(headers)
        body = b""
        more = scope["method"] == "POST"
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        method = json.loads(body).get("method", "answer") if body else scope["method"]
        seen.methods.append(method)
        if is_legacy and method == "server/discover":
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return parts.pop() if parts else await receive()

        await app(scope, replay, send)

    return record


@asynccontextmanager
async def serve_sdk(
    build: Callable[[Seen], MCPServer] = build_server, *, is_legacy: bool
) -> AsyncIterator[tuple[str, Seen]]:
    """Serves tools on loopback, in this event loop. Yields the URL."""
    seen = Seen()
    app = build(seen).streamable_http_app(stateless_http=not is_legacy)
    config = uvicorn.Config(
        _record(app, seen, is_legacy=is_legacy), port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    seen.connections = server.server_state.connections
    try:
        yield f"http://127.0.0.1:{port}/mcp", seen
    finally:
        server.should_exit = True
        await task


COMMAND = (sys.executable, "-m", "tests.app.tools.sdk_servers")

if __name__ == "__main__":
    build_server(Seen()).run("stdio")
