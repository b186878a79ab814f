"""A server process whose scripted model calls a tool that counts its executions, and that tool."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from msgspec import Struct, field

from tests.app.tools.sdk_servers import Seen, serve_sdk
from tests.progress import wait_with_progress
from tests.syntax import ROOT

LABEL = "counter"
EXIT_WAIT_S = 1.0
"""Time in which the end of a process is noticed, after a request to it has failed."""
COUNTED = "The count of this key is higher by one now."
SERVER_PROGRAM = """
import json, sys
sys.path.insert(0, ROOT)
import uvloop
from pathlib import Path
from antiphon.app.options.settings import Settings
from antiphon.app.context import create_context
from antiphon.app.lifecycle.listeners import bind_socket
from antiphon.app.main.server import run_server
from antiphon.app.store.factory import open_store
from tests.serving import scripted_registry

async def main(path, tool_url, key_path, script_path):
    where = {"store_url": path} if path.startswith("postgresql:") else {"store_file": Path(path)}
    settings = Settings(
        port=0, shutdown_timeout=0.2, tool_servers=("counter=" + tool_url,), encryption_key_file=Path(key_path), **where
    )
    with bind_socket(settings) as listener:
        store = open_store(settings)
        models = scripted_registry(json.loads(Path(script_path).read_text()), delay=0.003)
        context = create_context(settings, models, store=store)
        on_ready = lambda port: print(port, flush=True)
        await run_server(context, listener, on_ready=on_ready, on_request_done=lambda record: None)
        await store.close()

uvloop.run(main(*sys.argv[1:]))
"""
"""Prints its port. Arguments: the file or URL of the store, the URL of the tool, the files of the key and the script."""


class Counts(Struct):
    """How often each key was counted: executions that have begun, and those that have ended."""

    begun: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    cancelled: Counter[str] = field(default_factory=Counter)


class CountingTool(Struct):
    """The URL of the MCP server with the tool, and what it has counted."""

    url: str
    counts: Counts


@asynccontextmanager
async def serve_counter(*, is_legacy: bool = False) -> AsyncIterator[CountingTool]:
    """Serves the tool in this process, which is not the one that is killed."""
    counts = Counts()

    def build(_: Seen) -> MCPServer:
        server = MCPServer("counter")

        @server.tool()
        async def count(key: str, seconds: float) -> str:
            """Counts a key, then takes some seconds."""
            counts.begun[key] += 1
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                counts.cancelled[key] += 1
                raise
            counts.ended[key] += 1
            return COUNTED

        return server

    async with serve_sdk(build, is_legacy=is_legacy) as (url, _):
        yield CountingTool(url=url, counts=counts)


def write_call(key: str, seconds: float) -> str:
    """Returns what the model writes to call the tool."""
    call = {"name": "count", "arguments": {"key": key, "seconds": seconds}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def build_script(seconds_by_input: dict[str, tuple[tuple[str, float], ...]]) -> list[dict[str, Any]]:
    """Returns a script that calls the tool with the keys that stand beside the input, then says so."""
    replies = [
        {
            "name": text,
            "when": [text],
            "output": ["<think>\nI count.\n</think>\n\n" + "\n".join(write_call(*call) for call in calls)],
            "tokens_per_chunk": 4,
        }
        for text, calls in seconds_by_input.items()
    ]
    unknown = {
        "name": "unknown",
        "when": ["its outcome is unknown"],
        "output": ["I do not know."],
        "tokens_per_chunk": 1,
    }
    return [unknown, {"name": "counted", "when": [COUNTED], "output": ["It is done."], "tokens_per_chunk": 1}, *replies]


class CountingServers(Struct, frozen=True):
    """Starts server processes over one store. `store` is its file or its URL."""

    store: str
    tool_url: str
    folder: Path

    @asynccontextmanager
    async def run_server(self) -> AsyncIterator[tuple[str, Callable[[], None]]]:
        """Runs a process. Yields its URL and a function that kills it. A failure says whether it ended by itself."""
        program = SERVER_PROGRAM.replace("ROOT", repr(str(ROOT)))
        files = [str(self.folder / name) for name in ("key", "script.json")]
        command = [sys.executable, "-c", program, self.store, self.tool_url, *files]
        environment = os.environ | {"PYTHONFAULTHANDLER": "1"}  # a signal that ends the process prints its stack
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        killed: list[bool] = []

        def kill() -> None:
            killed.append(True)
            process.kill()

        try:
            reading = asyncio.create_task(process.stdout.readline())
            await asyncio.to_thread(wait_with_progress, reading.done, "the server did not start", pid=process.pid)
            yield f"http://127.0.0.1:{int(reading.result())}/v1", kill
        except BaseException as error:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), EXIT_WAIT_S)
            state = "runs" if process.returncode is None else f"has ended with code {process.returncode}"
            error.add_note(f"The process of the server {state}; the test has {'' if killed else 'not '}killed it.")
            raise
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
