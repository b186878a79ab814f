"""Real tool servers on loopback, for the whole server and its clients: of the SDK, for Node, and as commands."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from mcp.server import MCPServer

from tests.app.tools.sdk_servers import Seen, build_server, serve_sdk
from tests.clients.sdk_helpers import Json
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer

TIME_COMMAND = f"time={sys.executable} -m mcp_server_time"
FETCH_COMMAND = f"fetch={sys.executable} -m mcp_server_fetch --ignore-robots-txt --allow-private-ips"
NEVER = "never"
get = partial(httpx.get, timeout=HANG_TIMEOUT_S)
post = partial(httpx.post, timeout=HANG_TIMEOUT_S)
"""A tool server that is a command takes seconds to start on a busy machine."""


def name_server(label: str, approval: Any = NEVER, **fields: Any) -> Json:
    """Returns the tool that names a server of the operator's in a request."""
    return {"type": "mcp", "server_label": label, "require_approval": approval, **fields}


@contextmanager
def open_stream(server: RunningServer, request: Json) -> Iterator[Iterator[Json]]:
    """Opens a stream, which ends with the block. Yields its events as they come."""
    with httpx.stream("POST", f"{server.url}/responses", json=request, timeout=HANG_TIMEOUT_S) as reply:
        yield (json.loads(line.removeprefix("data: ")) for line in reply.iter_lines() if line.startswith("data: {"))


@contextmanager
def run_in_thread(open_server: Callable[[], AbstractAsyncContextManager[Any]]) -> Iterator[Any]:
    """Runs an asynchronous context in an event loop of its own. Yields what it yields."""
    opened: Future[tuple[Any, Callable[[], object]]] = Future()

    async def run() -> None:
        loop, closing = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with open_server() as value:
                opened.set_result((value, lambda: loop.call_soon_threadsafe(closing.set)))
                await closing.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            raise

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    value, close = opened.result(HANG_TIMEOUT_S)
    try:
        yield value
    finally:
        close()
        thread.join(HANG_TIMEOUT_S)
        assert not thread.is_alive()


@contextmanager
def serve_sdk_tools(
    build: Callable[[Seen], MCPServer] = build_server, *, is_legacy: bool = False
) -> Iterator[tuple[str, Seen]]:
    """Serves the tools of the SDK's server. Yields the URL, and what the server sees."""
    with run_in_thread(lambda: serve_sdk(build, is_legacy=is_legacy)) as served:
        yield served


@contextmanager
def serve_everything(node: Path, modules: Path) -> Iterator[str]:
    """Serves the tools of `@modelcontextprotocol/server-everything`, with an empty environment. Yields the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    program = modules / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    with (
        TemporaryDirectory(prefix="antiphon-everything-") as folder,
        subprocess.Popen(
            [node, program, "streamableHttp"],
            env={"PATH": "/usr/bin:/bin", "PORT": str(port)},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            wait_with_progress(lambda: _is_open(process, port), "the tool server did not start", pid=process.pid)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


def _is_open(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "the tool server has ended"
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@contextmanager
def serve_page(page: str) -> Iterator[str]:
    """Serves one HTML page at every path. Yields the URL."""
    body = page.encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    @asynccontextmanager
    async def open_site() -> AsyncIterator[str]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as site:
            yield f"http://127.0.0.1:{site.sockets[0].getsockname()[1]}/"

    with run_in_thread(open_site) as url:
        yield url
