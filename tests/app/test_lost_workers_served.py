"""Streams of all APIs on real sockets, whose worker process is killed: each client sees each token once."""

import asyncio
import logging
import os
import random
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from antiphon.engine.process.jobs.recovery import MAX_CONTINUATIONS, STOPPED_ALONE, SUSPECT_CRASHES
from tests.app.server_helpers import process_engine_registry
from tests.counts import FULL_COUNTS
from tests.engine.fake_core import TOKENS_BEFORE_FAULT
from tests.invariants import Event
from tests.merged_streams import merge_deltas, read_events
from tests.normalized_streams import normalize_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

pytestmark = pytest.mark.processes

NUM_KILLS, NUM_STREAMS = (200, 32) if FULL_COUNTS else (3, 8)
NUM_BYSTANDERS = 16
NUM_TOKENS = 120
MAX_DELAY_S = 0.1
"""Longest time between the moment when all streams run and the kill: ten tokens of the core."""
DELAYS = random.Random(1)


def build_request(number: int, num_tokens: int = NUM_TOKENS, prompt: str = "") -> tuple[str, dict[str, Any]]:
    """Returns the path and the body of a request. Four in a row are of the four APIs."""
    prompt = prompt or f"Stream {number}"
    body = {"model": "chatter", "stream": True, "temperature": 0}
    messages = [{"role": "user", "content": prompt}]
    usage = {"stream_options": {"include_usage": True}}
    return (
        ("/responses", body | {"input": prompt, "max_output_tokens": num_tokens}),
        ("/chat/completions", body | usage | {"messages": messages, "max_completion_tokens": num_tokens}),
        ("/completions", body | usage | {"prompt": prompt, "max_tokens": num_tokens}),
        ("/messages", body | {"messages": messages, "max_tokens": num_tokens}),
    )[number % 4]


def serve_core() -> AbstractContextManager[RunningServer]:
    return serve(process_engine_registry("tests.engine.fake_core:build_varying_core", max_num_seqs=NUM_STREAMS * 2))


async def read_stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Event]:
    """Returns the events of a stream, with adjacent deltas joined, and ids and times in a normal form."""
    reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return merge_deltas(read_events(normalize_stream(reply.content)))


async def read_streams(client: httpx.AsyncClient, requests: list[tuple[str, dict[str, Any]]]) -> list[list[Event]]:
    return await asyncio.gather(*(read_stream(client, path, body) for path, body in requests))


def create_client(server: RunningServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=HANG_TIMEOUT_S, limits=httpx.Limits(max_connections=None))


async def wait_for(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.002)


async def kill_workers(server: RunningServer, streams: list[asyncio.Task[list[Event]]], num_kills: int) -> list[int]:
    """Kills one worker after another while the streams run. Returns how many streams each kill has broken off.

    All streams that have not ended run again before the next kill, and none of them is tried alone any more.
    """
    engine, broken = server.engine, list[int]()

    def all_run() -> bool:
        stats = engine.stats()
        num_open = sum(not stream.done() for stream in streams)
        return num_open == 0 or bool(stats.running >= num_open and stats.generated_tokens)

    for _ in range(num_kills):
        await wait_for(all_run)
        await asyncio.sleep(DELAYS.uniform(0, MAX_DELAY_S))
        if engine.stats().running == 0:
            break
        broken.append(engine.stats().running)
        pid = engine.pid
        os.kill(pid, signal.SIGKILL)
        await wait_for(lambda pid=pid: engine.pid not in (pid, None))
    return broken


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_each_client_sees_each_token_once_through_many_kills() -> None:
    requests = [build_request(number) for number in range(NUM_STREAMS)]
    broken: list[int] = []
    with serve_core() as server:
        async with create_client(server) as client:
            expected = await read_streams(client, requests)
            while len(broken) < NUM_KILLS:
                streams = [asyncio.create_task(read_stream(client, *request)) for request in requests]
                broken += await kill_workers(server, streams, min(MAX_CONTINUATIONS, NUM_KILLS - len(broken)))
                for request, stream, events in zip(requests, streams, expected, strict=True):
                    assert await stream == events, request
    print(f"{len(broken)} kills broke off {sum(broken)} runs of {NUM_STREAMS} streams at a time, and no stream failed")


@pytest.mark.parametrize("number", range(4) if FULL_COUNTS else [0])
async def test_stream_that_kills_its_worker_fails_alone(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """`number` selects the API of that stream."""
    requests = [build_request(number) for number in range(NUM_BYSTANDERS)]
    with serve_core() as server:
        async with create_client(server) as client:
            expected = await read_streams(client, requests)
            with caplog.at_level(logging.WARNING, "antiphon.engine.process.client"):
                (killer, *others) = await read_streams(client, [build_request(number, prompt="KILLED"), *requests])
    assert others == expected
    assert len("".join(event.get("deltas", "") for event in killer)) == TOKENS_BEFORE_FAULT
    assert STOPPED_ALONE.message in str(killer), killer
    assert caplog.text.count("the engine stopped:") == SUSPECT_CRASHES + 1
