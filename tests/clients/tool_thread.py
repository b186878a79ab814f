"""An MCP server in a thread of its own, with which tests of clients run tools of the server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mcp.server import MCPServer

from tests.app.tools.sdk_servers import Seen
from tests.clients.tool_servers import serve_sdk_tools


@dataclass(frozen=True)
class ToolThread:
    """A running MCP server. `seen` has what it was sent."""

    url: str
    seen: Seen

    @property
    def num_calls(self) -> int:
        return self.seen.methods.count("tools/call")


@contextmanager
def run_tools() -> Iterator[ToolThread]:
    with serve_sdk_tools(_build_server) as (url, seen):
        yield ToolThread(url, seen)


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
