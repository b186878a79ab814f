"""An MCP server in a thread of its own, with which tests of clients run tools of the server."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mcp.server import MCPServer

from tests.app.tools.sdk_servers import Seen, serve_sdk
from tests.progress import wait_with_progress


class ToolThread:
    """A running MCP server. `seen` has what it was sent."""

    def __init__(self) -> None:
        self.url, self.seen = "", Seen()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tools", daemon=True)
        self._thread.start()
        wait_with_progress(lambda: bool(self.url) or not self._thread.is_alive(), "the tools did not start")
        assert self.url

    @property
    def num_calls(self) -> int:
        return self.seen.methods.count("tools/call")

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        wait_with_progress(lambda: not self._thread.is_alive(), "the tools did not stop")

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with serve_sdk(_build_server, is_legacy=False) as (url, seen):
            self.url, self.seen = url, seen
            await self._stopping.wait()


@contextmanager
def run_tools() -> Iterator[ToolThread]:
    thread = ToolThread()
    try:
        yield thread
    finally:
        thread.stop()


def _build_server(_: Seen) -> MCPServer:
    server = MCPServer("notes")

    @server.tool()
    def add(a: int, b: int) -> str:
        """Adds two numbers."""
        return f"the sum is {a + b}"

    @server.tool()
    def fail() -> str:
        raise ValueError("the tool is broken")

    @server.tool()
    def search(query: str) -> dict[str, Any]:
        """Searches."""
        return {"results": [{"url": "https://example.com/oslo", "title": f"About {query}"}]}

    @server.tool()
    def read_page(url: str) -> str:
        return f"the page {url} says that it rains"

    return server
