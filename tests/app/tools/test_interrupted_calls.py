"""A response that ends while its tool runs: cancelled, deleted, left by its reader, or by the server's shutdown.

The tool's server sees that the call was cancelled. No task, connection or process is left.
"""

import asyncio
import json
import os
import shlex
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.tools.mcp.tool_servers import check_extra
from tests.app.tools.sdk_servers import COMMAND, Seen, serve_sdk
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve
from tests.syntax import ROOT

check_extra()
ERAS = pytest.mark.parametrize("is_legacy", [False, True], ids=["2026-07-28", "legacy"])
CALLS = pytest.mark.parametrize(
    ("is_legacy", "is_approved"),
    [(False, False), (False, True), (True, False)],
    ids=["2026", "2026-approved", "legacy"],
)
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


def check_frozen(response: Json, status: str) -> None:
    """Asserts that the response ended with the call as its last item, incomplete."""
    assert response["status"] == status
    call = response["output"][-1]
    assert (call["type"], call["status"], call["output"], call["error"]) == ("mcp_call", "incomplete", None, None)


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


async def start_background(run: ToolRun, *, is_approved: bool) -> str:
    """Starts a response in the background. Returns its id once its tool runs."""
    request = body("Please wait.", background=True)
    if is_approved:
        request = await run.approve({"model": "scripted", "input": "Please wait."}) | {
            "tools": tools(),
            "background": True,
        }
    response_id = str((await run.post(**request)).json()["id"])
    await run.wait_running()
    return response_id


@CALLS
async def test_cancel_ends_the_call(*, is_legacy: bool, is_approved: bool) -> None:
    async with run_tools(is_legacy=is_legacy) as run:
        response_id = await start_background(run, is_approved=is_approved)
        reply = await run.client.post(f"{run.server.url}/responses/{response_id}/cancel")
        await asyncio.wait_for(run.seen.cancelled.wait(), HANG_TIMEOUT_S)
        check_frozen(check_stream(await run.read_events(response_id)), "cancelled")
        assert reply.json()["status"] == "cancelled"
        await run.assert_idle()
        stored = (await run.client.get(f"{run.server.url}/responses/{response_id}")).json()
        check_frozen(stored, "cancelled")


@CALLS
async def test_delete_ends_the_call(*, is_legacy: bool, is_approved: bool) -> None:
    async with run_tools(is_legacy=is_legacy) as run:
        response_id = await start_background(run, is_approved=is_approved)
        reply = await run.client.delete(f"{run.server.url}/responses/{response_id}")
        assert reply.status_code == 200
        await asyncio.wait_for(run.seen.cancelled.wait(), HANG_TIMEOUT_S)
        await run.assert_idle()
        assert (await run.client.get(f"{run.server.url}/responses/{response_id}")).status_code == 404


@pytest.mark.parametrize("method", ["POST", "DELETE"], ids=["cancel", "delete"])
async def test_call_ends_when_another_server_is_asked(tmp_path: Path, method: str) -> None:
    """Two servers share a store. The one that runs the tool learns of the request by the store."""
    with ExitStack() as stack:
        async with run_tools(store_file=tmp_path / "responses.db") as run:
            serving = serve(SCRIPT, store_file=tmp_path / "responses.db")
            other = await asyncio.to_thread(stack.enter_context, serving)
            response_id = await start_background(run, is_approved=False)
            suffix = "/cancel" if method == "POST" else ""
            reply = await run.client.request(method, f"{other.url}/responses/{response_id}{suffix}")
            assert reply.status_code == 200
            await asyncio.wait_for(run.seen.cancelled.wait(), HANG_TIMEOUT_S)
            await run.assert_idle()
            await asyncio.to_thread(stack.close)


@ERAS
async def test_reader_that_leaves_ends_the_call_of_a_foreground_response(*, is_legacy: bool) -> None:
    is_stream = is_legacy
    async with run_tools(is_legacy=is_legacy) as run:
        async with httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as reader:
            request = body("Please wait.", stream=is_stream)
            reading = asyncio.create_task(reader.post(f"{run.server.url}/responses", json=request))
            await run.wait_running()
            reading.cancel()
            await asyncio.wait({reading})
        await asyncio.wait_for(run.seen.cancelled.wait(), HANG_TIMEOUT_S)
        await run.assert_idle()


async def test_call_of_a_background_response_goes_on_without_readers() -> None:
    async with run_tools() as run:
        async with httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as reader:
            request = body("Please wait.", background=True, stream=True)
            async with reader.stream("POST", f"{run.server.url}/responses", json=request) as reply:
                line = await anext(line async for line in reply.aiter_lines() if line.startswith("data: "))
                response_id = json.loads(line.removeprefix("data: "))["response"]["id"]
                await run.wait_running()
        await asyncio.sleep(0.2)
        assert not run.seen.cancelled.is_set()
        run.seen.released.set()
        response = check_stream(await run.read_events(response_id))
        assert response["status"] == "completed" and response["output"][-1]["type"] == "message"
        await run.assert_idle()


@CALLS
async def test_shutdown_ends_the_call_and_the_response_as_failed(*, is_legacy: bool, is_approved: bool) -> None:
    background = is_legacy
    async with run_tools(is_legacy=is_legacy, shutdown_timeout=0.3) as run:
        request = body("Please wait.", background=background, stream=True)
        if is_approved:
            approval = await run.approve({"model": "scripted", "input": "Please wait."})
            request = approval | {"tools": tools(), "background": background, "stream": True}
        reading = asyncio.create_task(run.post(**request))
        await run.wait_running()
        run.server.stop()
        reply = await asyncio.wait_for(reading, HANG_TIMEOUT_S)
        response = check_stream(parse_events(reply.text))
        check_frozen(response, "failed")
        assert response["error"]["code"] == "server_error" and "shutting down" in response["error"]["message"]
        await asyncio.wait_for(run.seen.cancelled.wait(), HANG_TIMEOUT_S)


async def test_shutdown_waits_for_a_call_that_ends_in_time() -> None:
    async with run_tools(shutdown_timeout=HANG_TIMEOUT_S) as run:
        reading = asyncio.create_task(run.post(**body("Please wait.", stream=True)))
        await run.wait_running()
        run.server.stop()
        await asyncio.sleep(0.2)
        run.seen.released.set()
        reply = await asyncio.wait_for(reading, HANG_TIMEOUT_S)
        assert check_stream(parse_events(reply.text))["status"] == "completed"


@pytest.mark.parametrize("is_stopped", [False, True], ids=["cancel", "shutdown"])
async def test_command_outlives_a_call_and_ends_with_the_server(
    monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool
) -> None:
    monkeypatch.chdir(ROOT)
    async with run_tools(command=shlex.join(COMMAND), shutdown_timeout=0.3) as run:
        assert len(list_commands()) == 1
        response_id = str((await run.post(**body("Please wait.", background=True))).json()["id"])
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while "mcp_call_arguments.done" not in str(await run.read_so_far(response_id)):
                await asyncio.sleep(0.02)
        if not is_stopped:
            await run.client.post(f"{run.server.url}/responses/{response_id}/cancel")
            check_frozen(check_stream(await run.read_events(response_id)), "cancelled")
            await run.assert_idle()
            response = (await run.post(**body("Please add."))).json()
            assert response["output"][1]["output"] == "5" and len(list_commands()) == 1
    assert not list_commands()


def list_commands() -> list[str]:
    """Returns the command lines of the children of this process that serve tools."""
    lines = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            line = (path / "cmdline").read_text()
            if parent == os.getpid() and COMMAND[-1] in line:
                lines.append(line)
    return lines
