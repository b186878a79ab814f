"""The whole server over an engine that dies, hangs, runs out of memory, is flooded, or takes its time to load."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine, WorkerTimeouts
from antiphon.harmony.detect import bytes_format
from tests.app.test_server import free_port, within
from tests.counts import FULL_COUNTS
from tests.invariants import Event, check
from tests.serving import RunningServer, serve
from tests.syntax import ROOT

KILLS, STREAMS, STORM = (100, 16, 1000) if FULL_COUNTS else (3, 4, 60)
CHATTER = "tests.engine.fake_core:chatter"
TINY = "tests.engine.fake_core:tiny"
LIMITS = WorkerTimeouts(step_timeout=2.0, min_restart_delay=0.01, max_restart_delay=0.5)
TIMEOUT = httpx.Timeout(110)
BODY = {"model": "chatter", "input": "hello", "stream": True}


def catalogue(build: str = CHATTER, **options: Any) -> ModelRegistry:
    engine = ProcessEngine("", EngineOptions(**options), core_factory=build, timeouts=LIMITS)
    form = bytes_format("hermes")
    return ModelRegistry([ServedModel(names=("chatter",), engine=engine, format=form, created=1_700_000_000)])


@pytest.fixture(scope="module")
def chatty() -> Iterator[RunningServer]:
    with serve(catalogue(max_num_seqs=32)) as served:
        yield served


class Stream:
    """One streamed response, checked when it has ended."""

    def __init__(self, client: httpx.AsyncClient, served: RunningServer, words: str = "hello") -> None:
        self.talking = asyncio.Event()
        self._task = asyncio.create_task(self._read(client, served, words))

    async def _read(self, client: httpx.AsyncClient, served: RunningServer, words: str) -> list[Event]:
        events: list[Event] = []
        async with client.stream("POST", f"{served.url}/responses", json={**BODY, "input": words}) as reply:
            assert reply.status_code == 200, await reply.aread()
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line.removeprefix("data: ")))
                    if events[-1]["type"].endswith(".delta"):
                        self.talking.set()
        self.talking.set()
        return events

    async def end(self) -> Event:
        return check(await self._task)


@contextmanager
def healthy(served: RunningServer) -> Iterator[None]:
    """All the while, /health answers."""
    statuses: list[int] = []
    over = asyncio.Event()

    async def ask() -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            while not over.is_set():
                statuses.append((await client.get(f"{served.root}/health")).status_code)
                await asyncio.sleep(0.02)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        over.set()
        asking.cancel()
    assert set(statuses) == {200}


async def succeeds(client: httpx.AsyncClient, served: RunningServer) -> None:
    """The next request is served."""
    body = {**BODY, "stream": False, "max_output_tokens": 5}
    reply = await client.post(f"{served.url}/responses", json=body)
    assert reply.status_code == 200 and reply.json()["status"] in {"incomplete", "completed"}, reply.text


@pytest.mark.parametrize("build", [CHATTER, *([TINY] if FULL_COUNTS else [])])
@pytest.mark.timeout(1800)
async def test_killed_under_streams_again_and_again(build: str) -> None:
    with serve(catalogue(build, max_num_seqs=STREAMS)) as served:
        async with httpx.AsyncClient(timeout=TIMEOUT, limits=httpx.Limits(max_connections=None)) as client:
            with healthy(served):
                for _ in range(KILLS):
                    streams = [Stream(client, served) for _ in range(STREAMS)]
                    for stream in streams:
                        await asyncio.wait_for(stream.talking.wait(), 100)
                    os.kill(served.engine.pid, signal.SIGKILL)
                    responses = [await stream.end() for stream in streams]
                    failed = [response for response in responses if response["status"] == "failed"]
                    # A real model's random words may have come to an end of their own before.
                    assert len(failed) == STREAMS if build == CHATTER else failed
                    for response in failed:
                        assert "memory ran out" in response["error"]["message"]
                        assert response["output"][0]["status"] == "incomplete"
                    await succeeds(client, served)


@pytest.mark.parametrize("fate", ["HANG", "MEMORY", "SEGFAULT", "BUG"])
async def test_any_disaster_fails_the_turns_in_hand_and_the_next_is_served(chatty: RunningServer, fate: str) -> None:
    async with httpx.AsyncClient(timeout=TIMEOUT) as client:
        with healthy(chatty):
            bystander = Stream(client, chatty)
            await bystander.talking.wait()
            doomed = Stream(client, chatty, fate)
            for stream in (bystander, doomed):
                assert (await stream.end())["status"] == "failed"
            await succeeds(client, chatty)
            assert (await client.get(f"{chatty.root}/ready")).status_code == 200


async def test_a_flood_is_served_or_refused_and_nobody_hangs() -> None:
    body = {**BODY, "stream": False, "max_output_tokens": 20}
    with serve(catalogue(max_num_seqs=4, max_waiting=12)) as served:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits) as client:
            with healthy(served):
                asked = (client.post(f"{served.url}/responses", json=body) for _ in range(STORM))
                replies = await asyncio.gather(*asked)
            counts = Counter(reply.status_code for reply in replies)
            assert set(counts) == {200, 429} and counts[200] >= 16, counts
            for reply in replies:
                if reply.status_code == 429:
                    assert reply.headers["retry-after"] == "1"
                    assert reply.json()["error"]["code"] == "rate_limit_exceeded"
            await succeeds(client, served)


# Loading, in a process of its own as `antiphon serve` is one

SERVER = """
import sys
sys.path.insert(0, ROOT)
import uvloop
from antiphon.app.context import create_context
from antiphon.app.server import bind_socket, run_server
from antiphon.app.settings import Settings
from antiphon.engine.protocol import EngineError
from tests.app.test_engine_process import CHATTER, LIMITS, ModelRegistry, ProcessEngine, ServedModel, bytes_format

async def main(port, folder):
    settings = Settings(port=int(port), shutdown_timeout=0.2)
    engine = ProcessEngine(folder, core_factory=CHATTER, timeouts=LIMITS, on_status=lambda news: print(news, flush=True))
    model = ServedModel(names=("chatter",), engine=engine, format=bytes_format("hermes"), created=1)
    with bind_socket(settings) as listener:
        context = create_context(settings, ModelRegistry([model]))
        on_ready = lambda port: print("banner", flush=True)
        await run_server(context, listener, on_ready=on_ready, on_request_done=lambda record: None)

try:
    uvloop.run(main(*sys.argv[1:]))
except EngineError as error:
    sys.exit(f"refused: {error}")
"""

Start = Callable[[], tuple[str, "subprocess.Popen[str]"]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def started() -> tuple[str, "subprocess.Popen[str]"]:
        port = free_port()
        command = [sys.executable, "-c", SERVER.replace("ROOT", repr(str(ROOT))), str(port), str(tmp_path)]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        running.append(subprocess.Popen(command, text=True, **pipes))
        return f"http://127.0.0.1:{port}", running[-1]

    yield started
    for one in running:
        one.kill()
        one.communicate()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def test_while_the_engine_loads_the_server_answers(tmp_path: Path, start: Start) -> None:
    (tmp_path / "slow").write_text("until", encoding="utf-8")
    url, process = start()
    assert within(60, lambda: answers(url))
    reply = httpx.get(f"{url}/ready")
    assert reply.status_code == 503
    assert within(60, lambda: httpx.get(f"{url}/ready").json()["reason"] == "chatter: loading: packing weights")
    assert httpx.head(f"{url}/ready").status_code == 503
    assert [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]] == ["chatter"]
    wrong = httpx.post(f"{url}/v1/responses", json={**BODY, "model": "other"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
    with pytest.raises(httpx.ReadTimeout):  # it waits, and whoever does not want to may leave
        httpx.post(f"{url}/v1/responses", json=BODY, timeout=0.3)
    (tmp_path / "slow").unlink()
    body = {**BODY, "stream": False, "max_output_tokens": 3}
    assert httpx.post(f"{url}/v1/responses", json=body, timeout=TIMEOUT).json()["usage"]["output_tokens"] == 3
    assert httpx.get(f"{url}/ready").status_code == 200
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[0].splitlines()
    assert said == ["loading", "loading: packing weights", "ready", "banner"]


def test_a_signal_while_it_loads_ends_the_server_and_tells_who_waits(tmp_path: Path, start: Start) -> None:
    (tmp_path / "slow").write_text("until", encoding="utf-8")
    url, process = start()
    assert within(60, lambda: answers(url))

    async def wait_and_stop() -> httpx.Response:
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            waiting = asyncio.create_task(client.post(f"{url}/v1/responses", json=BODY))
            await asyncio.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            return await waiting

    reply = asyncio.run(wait_and_stop())
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert process.wait(60) in (0, -signal.SIGTERM)


def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_line(tmp_path: Path, start: Start) -> None:
    (tmp_path / "refuse").write_text("weights are missing; get them", encoding="utf-8")
    _, process = start()
    said = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 1
    assert said[-1] == "refused: weights are missing; get them"
