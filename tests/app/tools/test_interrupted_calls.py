"""A response that ends while its tool runs: cancelled, deleted, left by its reader, or by the server's shutdown.

The tool's server sees that the call was cancelled. No task, connection or process is left.
"""

import asyncio
import json
import os
import shlex
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from antiphon.app.tools.mcp.tool_servers import check_extra
from tests.app.tools.interrupted_calls import SCRIPT, Json, ToolRun, body, parse_events, run_tools, tools
from tests.app.tools.sdk_servers import COMMAND
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import serve
from tests.syntax import ROOT

pytestmark = pytest.mark.processes

check_extra()
ERAS = pytest.mark.parametrize("is_legacy", [False, True], ids=["2026-07-28", "legacy"])
CALLS = pytest.mark.parametrize(
    ("is_legacy", "is_approved"),
    [(False, False), (False, True), (True, False)],
    ids=["2026", "2026-approved", "legacy"],
)


def check_frozen(response: Json, status: str) -> None:
    """Asserts that the response ended with the call as its last item, incomplete."""
    assert response["status"] == status
    call = response["output"][-1]
    assert (call["type"], call["status"], call["output"], call["error"]) == ("mcp_call", "incomplete", None, None)


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


async def test_call_of_a_background_response_continues_without_readers() -> None:
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
    async with run_tools(is_legacy=is_legacy, shutdown_timeout=0.3) as run:
        request = body("Please wait.", stream=True)
        if is_approved:
            request = await run.approve({"model": "scripted", "input": "Please wait."})
            request |= {"tools": tools(), "stream": True}
        reading = asyncio.create_task(run.post(**request))
        await run.wait_running()
        run.server.stop()
        reply = await asyncio.wait_for(reading, HANG_TIMEOUT_S)
        response = check_stream(parse_events(reply.text))
        check_frozen(response, "failed")
        assert response["error"]["code"] == "server_error" and "shutting down" in response["error"]["message"]
        await asyncio.wait_for(run.seen.cancelled.wait(), HANG_TIMEOUT_S)


async def test_shutdown_ends_the_call_and_leaves_the_background_response_open() -> None:
    async with run_tools(shutdown_timeout=0.3) as run:
        reading = asyncio.create_task(run.post(**body("Please wait.", background=True, stream=True)))
        await run.wait_running()
        run.server.stop()
        events = parse_events((await asyncio.wait_for(reading, HANG_TIMEOUT_S)).text)
        assert events[-1]["type"] == "response.mcp_call_arguments.done", "another server goes on"
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
