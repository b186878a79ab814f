"""Servers in processes of their own, and clients that read from them until they are killed."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import httpx

from tests.app.store.store_helpers import SERVER_PROGRAM, StorePlace
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.syntax import ROOT

STREAM_BODY = {"model": "scripted", "input": "Hi", "background": True, "stream": True}
ReceivedEvents = dict[str, list[str]]
"""Response id to the `data:` lines that a client received."""


@asynccontextmanager
async def run_server(
    place: StorePlace, stop_signal: signal.Signals = signal.SIGKILL, inspect: str = "off"
) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Runs a server process with that store. Yields its URL and a function that kills it, or sends another signal."""
    async with run_process(place, inspect) as (url, process):
        yield url, partial(process.send_signal, stop_signal)
        if stop_signal is not signal.SIGKILL:
            await asyncio.wait_for(process.wait(), HANG_TIMEOUT_S)


@asynccontextmanager
async def run_process(place: StorePlace, inspect: str = "off") -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Runs a server process with that store. Yields its URL and the process, which is killed at the end."""
    command = [sys.executable, "-c", SERVER_PROGRAM.replace("ROOT", repr(str(ROOT))), place.name, inspect]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        reading = asyncio.create_task(process.stdout.readline())
        await asyncio.to_thread(wait_with_progress, reading.done, "the server did not start", pid=process.pid)
        yield f"http://127.0.0.1:{int(reading.result())}/v1", process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_until_killed(client: httpx.AsyncClient, url: str, received: ReceivedEvents) -> None:
    """Starts a background response and reads it until it ends or the server is killed. Adds its events to `received`."""
    lines: list[str] = []
    try:
        async with client.stream("POST", f"{url}/responses", json=STREAM_BODY) as reply:
            await append_data_lines(reply, lines)
    except httpx.HTTPError:
        pass
    if lines:
        received[json.loads(lines[0])["response"]["id"]] = lines


async def append_data_lines(reply: httpx.Response, lines: list[str]) -> None:
    async for line in reply.aiter_lines():
        if line.startswith("data: {"):
            lines.append(line.removeprefix("data: "))  # noqa: PERF401  # keeps the lines before an error


async def replay(client: httpx.AsyncClient, url: str, response_id: str, after: int = -1) -> list[str]:
    lines: list[str] = []
    target = f"{url}/responses/{response_id}?stream=true&starting_after={after}"
    async with client.stream("GET", target) as reply:
        assert reply.status_code == 200, await reply.aread()
        await append_data_lines(reply, lines)
    return lines
