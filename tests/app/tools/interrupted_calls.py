"""A server whose tool call a test interrupts."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from tests.app.tools.sdk_servers import Seen, serve_sdk
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

WAIT_CALL = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
ADD_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "waited", "when": ["<tool_response>"], "output": ["It is done."]},
    {"name": "wait", "when": ["Please wait."], "output": [WAIT_CALL]},
    {"name": "add", "when": ["Please add."], "output": [ADD_CALL]},
    {"name": "talk", "when": ["Please talk."], "output": [ADD_CALL, *[{"pause": 0.1}, "More. "] * 20]},
]
Json = dict[str, Any]


class ToolRun:
    """A server with the tools of a command or of a server in this event loop, and a client."""

    def __init__(self, server: RunningServer, client: httpx.AsyncClient, seen: Seen) -> None:
        self.server, self.client, self.seen = server, client, seen
        self._idle_tasks: set[str] = set()

    async def warm_up(self) -> None:
        """Makes one call, and notes the tasks that stay after it."""
        response = (await self.post(**body("Please add."))).json()
        assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "mcp_call", "message"], response
        assert response["output"][1]["output"] == "5"
        await asyncio.sleep(0.2)
        self._idle_tasks = await self._list_tasks()

    async def post(self, **fields: Any) -> httpx.Response:
        return await self.client.post(f"{self.server.url}/responses", json=fields)

    async def approve(self, fields: Json) -> Json:
        """Asks for an approval. Returns the request that gives it."""
        asked = (await self.post(**fields, tools=tools("always"))).json()
        (request,) = [item for item in asked["output"] if item["type"] == "mcp_approval_request"]
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        return fields | {"input": [answer], "previous_response_id": asked["id"]}

    async def wait_running(self) -> None:
        await asyncio.wait_for(self.seen.running.wait(), HANG_TIMEOUT_S)
        names = " ".join(await self._list_tasks() - self._idle_tasks)
        assert "Turn._run_turn" in names and "ToolServers._work" in names, "else `assert_idle` would see nothing"

    async def read_events(self, response_id: str) -> list[Json]:
        reply = await self.client.get(f"{self.server.url}/responses/{response_id}?stream=true")
        return parse_events(reply.text)

    async def read_so_far(self, response_id: str) -> list[Json]:
        """Returns the events of a response in the background that still runs."""
        url = f"{self.server.url}/responses/{response_id}?stream=true"
        events: list[Json] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3), self.client.stream("GET", url) as reply:
                async for line in reply.aiter_lines():
                    events += parse_events(line)
        return events

    async def assert_idle(self) -> None:
        """Asserts that neither a turn nor a task nor a connection to the tool's server is left, after a moment."""
        left: Any = None
        for _ in range(300):
            left = (self.server.context.turn_manager.num_running, await self._list_tasks() - self._idle_tasks)
            if left == (0, set()) and not self.seen.connections:
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"turns and tasks: {left}, connections: {len(self.seen.connections)}")

    async def _list_tasks(self) -> set[str]:
        async def list_names() -> set[str]:
            ours = asyncio.current_task()
            return {repr(task.get_coro()) for task in asyncio.all_tasks() if task is not ours and is_of_tools(task)}

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(list_names(), self.server.loop))


def is_of_tools(task: asyncio.Task[Any]) -> bool:
    """Tells whether a task belongs to a turn or a tool. Others are those of connections, which clients keep open."""
    name = f"{task.get_name()} {task.get_coro()!r}"
    return not any(word in name for word in ("Http", "http_protocol", "AntiphonServer", "_ServerThread", "run_asgi"))


def tools(approval: str = "never") -> list[Json]:
    return [{"type": "mcp", "server_label": "test", "require_approval": approval}]


def body(text: str, **fields: Any) -> Json:
    return {"model": "scripted", "input": text, "tools": tools(), **fields}


def parse_events(text: str) -> list[Json]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


@asynccontextmanager
async def run_tools(*, is_legacy: bool = False, command: str = "", **settings: Any) -> AsyncIterator[ToolRun]:
    """Runs a server with the tools of `sdk_servers`, over HTTP or of a command."""
    with ExitStack() as stack:
        async with serve_sdk(is_legacy=is_legacy) as (url, seen), httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as client:
            options = {"tool_commands": (f"test={command}",)} if command else {"tool_servers": (f"test={url}",)}
            serving = serve(SCRIPT, file_store="store_file" not in settings, **options, **settings)
            server = await asyncio.to_thread(stack.enter_context, serving)
            run = ToolRun(server, client, seen)
            try:
                await run.warm_up()
                yield run
            finally:
                await asyncio.to_thread(stack.close)
        assert not seen.connections
