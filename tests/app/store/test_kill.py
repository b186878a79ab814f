"""`kill -9` of the server at random moments: what a reader saw stays, once, in place, and every response comes to an end.

Several background responses run at once, in a real server process over a file; after each kill the next process is
asked for everything that was ever begun. `ANTIPHON_TEST_FULL=1` kills 200 times.
"""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.counts import FULL_COUNTS
from tests.invariants import check
from tests.syntax import ROOT

KILLS = 200 if FULL_COUNTS else 4
STREAMS = 4
SERVER = """
import sys
sys.path.insert(0, ROOT)
import uvloop
from pathlib import Path
from antiphon.app.context import create_context
from antiphon.app.server import bind_socket, run_server
from antiphon.app.settings import Settings
from antiphon.app.store.factory import open_store
from tests.serving import scripted_registry

SPOKEN = "<think>\\nLet me see.\\n</think>\\n\\n" + "word " * 40
SCRIPT = [{"name": "long", "output": [SPOKEN], "tokens_per_chunk": 2}]

async def main(path):
    settings = Settings(port=0, shutdown_timeout=0.2, store_file=Path(path))
    with bind_socket(settings) as listener:
        store = open_store(settings)
        context = create_context(settings, scripted_registry(SCRIPT, delay=0.003), store=store)
        on_ready = lambda port: print(port, flush=True)
        await run_server(context, listener, on_ready=on_ready, on_request_done=lambda record: None)
        await store.close()

uvloop.run(main(*sys.argv[1:]))
"""
BODY = {"model": "scripted", "input": "Hi", "background": True, "stream": True}
Seen = dict[str, list[str]]


@asynccontextmanager
async def server(path: Path) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """A server process on that file: its URL, and what kills it."""
    command = [sys.executable, "-c", SERVER.replace("ROOT", repr(str(ROOT))), str(path)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        port = int(await asyncio.wait_for(process.stdout.readline(), 60))
        yield f"http://127.0.0.1:{port}/v1", process.kill
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read(client: httpx.AsyncClient, url: str, seen: Seen) -> None:
    """Begin a background response and read it until the server is gone; what was seen is kept."""
    lines: list[str] = []
    try:
        async with client.stream("POST", f"{url}/responses", json=BODY) as reply:
            await keep(reply, lines)
    except httpx.HTTPError:
        pass
    if lines:
        seen[json.loads(lines[0])["response"]["id"]] = lines


async def keep(reply: httpx.Response, lines: list[str]) -> None:
    async for line in reply.aiter_lines():
        if line.startswith("data: {"):
            lines.append(line.removeprefix("data: "))  # noqa: PERF401  # what came before a break counts


async def replay(client: httpx.AsyncClient, url: str, name: str, after: int = -1) -> list[str]:
    lines: list[str] = []
    address = f"{url}/responses/{name}?stream=true&starting_after={after}"
    async with client.stream("GET", address) as reply:
        assert reply.status_code == 200, await reply.aread()
        await keep(reply, lines)
    return lines


async def holds(client: httpx.AsyncClient, url: str, name: str, lines: list[str], chance: random.Random) -> str:
    """What a reader saw is the beginning of what is there now, which is legal and has ended; its status."""
    whole = await replay(client, url, name)
    assert whole[: len(lines)] == lines, f"{name}: what was seen has changed"
    response = check([json.loads(line) for line in whole])
    after = chance.randrange(-1, len(whole))
    assert await replay(client, url, name, after) == whole[after + 1 :], "whoever had seen up to N gets N+1 onwards"
    assert (await client.get(f"{url}/responses/{name}")).json() == response
    return str(response["status"])


@pytest.mark.timeout(60 + 20 * KILLS)
async def test_nothing_that_was_seen_is_lost_changed_or_repeated(tmp_path: Path) -> None:
    path, chance, seen = tmp_path / "responses.db", random.Random(11), Seen()
    limits, statuses = httpx.Limits(max_connections=None), dict[str, Any]()
    for _ in range(KILLS):
        async with server(path) as (url, kill), httpx.AsyncClient(timeout=30, limits=limits) as client:
            for name in [name for name in seen if name not in statuses]:
                statuses[name] = await holds(client, url, name, seen[name], chance)
            readers = [asyncio.create_task(read(client, url, seen)) for _ in range(STREAMS)]
            await asyncio.sleep(chance.uniform(0.0, 0.4))
            kill()
            await asyncio.gather(*readers)
    async with server(path) as (url, _), httpx.AsyncClient(timeout=30, limits=limits) as client:
        for name, lines in seen.items():
            statuses[name] = await holds(client, url, name, lines, chance)
    counts = {status: list(statuses.values()).count(status) for status in set(statuses.values())}
    print(f"{KILLS} kills, {len(seen)} responses seen: {counts}")
    assert counts.get("failed"), "some were cut off"


@pytest.mark.timeout(120)
async def test_a_second_process_tells_what_the_first_is_writing_and_ends_what_it_left(tmp_path: Path) -> None:
    path, chance, seen = tmp_path / "responses.db", random.Random(12), Seen()
    async with server(path) as (url, kill), server(path) as (other, _), httpx.AsyncClient(timeout=30) as client:
        reading = asyncio.create_task(read(client, url, seen))
        made = (await client.post(f"{url}/responses", json={**BODY, "stream": False})).json()["id"]
        whole = await replay(client, other, made)
        assert whole == await replay(client, url, made), "live, and read from the other process"
        assert check([json.loads(line) for line in whole])["status"] == "completed"
        await reading
        (complete,) = seen.values()
        assert json.loads(complete[-1])["response"]["status"] == "completed"
        left = (await client.post(f"{url}/responses", json={**BODY, "stream": False})).json()["id"]
        following = asyncio.create_task(replay(client, other, left))
        await asyncio.sleep(0.1)
        kill()
        lines = await asyncio.wait_for(following, 20)
        assert await holds(client, other, left, lines, chance) == "failed"
        assert json.loads(lines[-1])["response"]["error"]["code"] == "server_restarted"
