"""A whole server whose engine worker process is killed, hangs, runs out of memory, is overloaded, or loads slowly."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.server_helpers import FAKE_CORE_FACTORY, free_port, process_engine_registry, wait_until
from tests.counts import FULL_COUNTS
from tests.invariants import Event, check_stream
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, serve
from tests.syntax import ROOT

pytestmark = pytest.mark.processes

NUM_KILLS, NUM_STREAMS, NUM_REQUESTS = (100, 16, 1000) if FULL_COUNTS else (3, 4, 60)
BYTE_MODEL_CORE_FACTORY = "tests.engine.fake_core:build_byte_model_core"
CLIENT_TIMEOUT = httpx.Timeout(110)
STREAM_BODY = {"model": "chatter", "input": "hello", "stream": True, "max_output_tokens": 400}


SERVER = partial(serve, partial(process_engine_registry, max_num_seqs=32))


class StreamReader:
    """Reads a streamed response in a task. Its events are checked when it has ended."""

    def __init__(self, client: httpx.AsyncClient, server: RunningServer, prompt: str = "hello") -> None:
        self.has_delta = asyncio.Event()
        self._task = asyncio.create_task(self._read(client, server, prompt))

    async def _read(self, client: httpx.AsyncClient, server: RunningServer, prompt: str) -> list[Event]:
        events: list[Event] = []
        async with client.stream("POST", f"{server.url}/responses", json={**STREAM_BODY, "input": prompt}) as reply:
            assert reply.status_code == 200, await reply.aread()
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line.removeprefix("data: ")))
                    if events[-1]["type"].endswith(".delta"):
                        self.has_delta.set()
        self.has_delta.set()
        return events

    async def end(self) -> Event:
        return check_stream(await self._task)


@contextmanager
def assert_healthy(server: RunningServer) -> Iterator[None]:
    """Asserts that `/health` answers 200 throughout the block."""
    statuses: list[int] = []
    stopped = asyncio.Event()

    async def poll() -> None:
        async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT) as client:
            while not stopped.is_set():
                statuses.append((await client.get(f"{server.root}/health")).status_code)
                await asyncio.sleep(0.02)

    polling = asyncio.create_task(poll())
    try:
        yield
    finally:
        stopped.set()
        polling.cancel()
    assert set(statuses) == {200}


async def assert_next_request_is_served(client: httpx.AsyncClient, server: RunningServer) -> None:
    """Asserts that a request is served."""
    body = {**STREAM_BODY, "stream": False, "max_output_tokens": 5}
    reply = await client.post(f"{server.url}/responses", json=body)
    assert reply.status_code == 200 and reply.json()["status"] == "incomplete", reply.text


@pytest.mark.parametrize("core_factory", [FAKE_CORE_FACTORY, *([BYTE_MODEL_CORE_FACTORY] if FULL_COUNTS else [])])
@pytest.mark.timeout(1800)
async def test_responses_continue_and_the_engine_restarts_after_each_kill(core_factory: str) -> None:
    with serve(process_engine_registry(core_factory, max_num_seqs=NUM_STREAMS)) as server:
        async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT, limits=httpx.Limits(max_connections=None)) as client:
            with assert_healthy(server):
                for _ in range(NUM_KILLS):
                    streams = [StreamReader(client, server) for _ in range(NUM_STREAMS)]
                    for stream in streams:
                        await asyncio.wait_for(stream.has_delta.wait(), HANG_TIMEOUT_S)
                    os.kill(server.engine.pid, signal.SIGKILL)
                    responses = [await stream.end() for stream in streams]
                    statuses = Counter(response["status"] for response in responses)
                    # A real model may generate its end token before its limit.
                    assert set(statuses) <= {"incomplete", "completed"}, statuses
                    await assert_next_request_is_served(client, server)


@pytest.mark.parametrize("marker", ["HANG", "MEMORY", "SEGFAULT", "BUG"])
async def test_engine_fault_fails_its_turn_and_no_other(server: RunningServer, marker: str) -> None:
    """A prompt with one of these markers makes the fake core hang or crash."""
    async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT) as client:
        with assert_healthy(server):
            running = StreamReader(client, server)
            await running.has_delta.wait()
            faulty = StreamReader(client, server, marker)
            assert [(await stream.end())["status"] for stream in (running, faulty)] == ["incomplete", "failed"]
            await assert_next_request_is_served(client, server)
            assert (await client.get(f"{server.root}/ready")).status_code == 200


async def test_overload_is_served_or_rejected_and_no_request_hangs() -> None:
    body = {**STREAM_BODY, "stream": False, "max_output_tokens": 20}
    with serve(process_engine_registry(max_num_seqs=4, max_waiting=12)) as server:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT, limits=limits) as client:
            with assert_healthy(server):
                requests = (client.post(f"{server.url}/responses", json=body) for _ in range(NUM_REQUESTS))
                replies = await asyncio.gather(*requests)
            counts = Counter(reply.status_code for reply in replies)
            assert set(counts) == {200, 429} and counts[200] >= 16, counts
            for reply in replies:
                if reply.status_code == 429:
                    assert reply.headers["retry-after"] == "1"
                    assert reply.json()["error"]["code"] == "rate_limit_exceeded"
            await assert_next_request_is_served(client, server)


# Loading, in a server process of its own, as `antiphon serve` is one

SERVER_PROGRAM = """
import sys
sys.path.insert(0, ROOT)
import uvloop
from antiphon.app.context import create_context
from antiphon.app.store.factory import open_store
from antiphon.app.lifecycle.listeners import bind_socket
from antiphon.app.main.server import run_server
from antiphon.app.options.settings import Settings
from antiphon.engine.protocol import EngineError
from tests.app.server_helpers import process_engine_registry

async def main(port, folder):
    settings = Settings(port=int(port), shutdown_timeout=0.2)
    models = process_engine_registry(folder=folder, on_status=lambda status: print(status, flush=True))
    with bind_socket(settings) as listener:
        store = open_store(settings)
        context = create_context(settings, models, store=store)
        on_ready = lambda port: print("banner", flush=True)
        await run_server(context, listener, on_ready=on_ready, on_request_done=lambda record: None)
        await store.close()

try:
    uvloop.run(main(*sys.argv[1:]))
except EngineError as error:
    sys.exit(f"refused: {error}")
"""

StartProcess = Callable[[], tuple[str, "subprocess.Popen[str]"]]


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[StartProcess]:
    """Starts `SERVER_PROGRAM` with the model folder `tmp_path`. Returns its URL and the process."""
    processes: list[subprocess.Popen[str]] = []

    def start() -> tuple[str, "subprocess.Popen[str]"]:
        port = free_port()
        command = [sys.executable, "-c", SERVER_PROGRAM.replace("ROOT", repr(str(ROOT))), str(port), str(tmp_path)]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        processes.append(subprocess.Popen(command, text=True, **pipes))
        return f"http://127.0.0.1:{port}", processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=HANG_TIMEOUT_S).status_code == 200
    except httpx.TransportError:
        return False


def test_server_answers_while_the_engine_loads(tmp_path: Path, start_process: StartProcess) -> None:
    (tmp_path / "slow").write_text("until", encoding="utf-8")
    url, process = start_process()
    wait_with_progress(lambda: is_healthy(url), "the server did not start", pid=process.pid)
    reply = httpx.get(f"{url}/ready")
    assert reply.status_code == 503
    assert wait_until(60, lambda: httpx.get(f"{url}/ready").json()["reason"] == "chatter: loading: packing weights")
    assert httpx.head(f"{url}/ready").status_code == 503
    assert [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]] == ["chatter"]
    rejected = httpx.post(f"{url}/v1/responses", json={**STREAM_BODY, "model": "other"})
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (404, "model_not_found")
    with pytest.raises(httpx.ReadTimeout):  # a request waits for the engine; its client may disconnect
        httpx.post(f"{url}/v1/responses", json=STREAM_BODY, timeout=0.3)
    (tmp_path / "slow").unlink()
    body = {**STREAM_BODY, "stream": False, "max_output_tokens": 3}
    assert httpx.post(f"{url}/v1/responses", json=body, timeout=CLIENT_TIMEOUT).json()["usage"]["output_tokens"] == 3
    assert httpx.get(f"{url}/ready").status_code == 200
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=HANG_TIMEOUT_S)[0].splitlines()
    assert output == ["loading", "loading: packing weights", "ready", "banner"]


def test_sigterm_during_loading_answers_503_and_ends_the_server(tmp_path: Path, start_process: StartProcess) -> None:
    (tmp_path / "slow").write_text("until", encoding="utf-8")
    url, process = start_process()
    wait_with_progress(lambda: is_healthy(url), "the server did not start", pid=process.pid)

    async def stop_while_waiting() -> httpx.Response:
        async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT) as client:
            waiting = asyncio.create_task(client.post(f"{url}/v1/responses", json=STREAM_BODY))
            await asyncio.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            return await waiting

    reply = asyncio.run(stop_while_waiting())
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert process.wait(60) in (0, -signal.SIGTERM)


def test_load_error_ends_the_server_with_one_line(tmp_path: Path, start_process: StartProcess) -> None:
    (tmp_path / "refuse").write_text("weights are missing; get them", encoding="utf-8")
    _, process = start_process()
    output = process.communicate(timeout=HANG_TIMEOUT_S)[0].splitlines()
    assert process.returncode == 1
    assert output[-1] == "refused: weights are missing; get them"
