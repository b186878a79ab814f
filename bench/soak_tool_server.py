"""The tools of the soak test, as an MCP server: a command, or over HTTP with the argument `http`. It then prints its URL."""

import argparse
import asyncio
import os
from typing import Any

import uvicorn
from mcp.server import MCPServer

FLOOD_BYTES = 10_000_000


def _serve_tools(*, is_http: bool) -> None:
    server = MCPServer("soak")

    @server.tool()
    def answer() -> str:
        """Answers."""
        return "An answer."

    @server.tool()
    async def hang() -> str:
        """Never answers."""
        await asyncio.sleep(3600)
        return ""

    @server.tool()
    async def die() -> str:
        """Ends the command in the middle of the call; over HTTP, fails."""
        if not is_http:
            os._exit(3)
        raise ValueError("dead")

    @server.tool()
    def flood() -> str:
        """Answers with more than the server takes."""
        return "x" * FLOOD_BYTES

    if is_http:
        asyncio.run(_serve_http(server.streamable_http_app(stateless_http=True)))
    else:
        server.run("stdio")


async def _serve_http(app: Any) -> None:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp", flush=True)
    await serving


def main() -> None:
    """Serves the tools as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("transport", nargs="?", choices=["http", "stdio"], default="stdio")
    _serve_tools(is_http=parser.parse_args().transport == "http")


if __name__ == "__main__":
    main()
