"""`kill -9` of the server at random moments: events that a client received stay, and every response continues to its end.

Several background responses run at once in a server process. After each kill, the next process continues every
response that was begun. `ANTIPHON_TEST_FULL=1` kills 200 times.
"""

import asyncio
import json
import random
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.app.store.killed_servers import (
    STREAM_BODY,
    ReceivedEvents,
    append_data_lines,
    read_until_killed,
    replay,
    run_process,
    run_server,
)
from tests.app.store.store_helpers import StorePlace
from tests.counts import FULL_COUNTS
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S

pytestmark = pytest.mark.processes

NUM_KILLS = 200 if FULL_COUNTS else 2
NUM_STREAMS = 16 if FULL_COUNTS else 4
NUM_CLUSTER_STREAMS = 16
NUM_OUTPUT_TOKENS = len("\nLet me see.\n\n\n" + "word " * 40) + 3
"""Letters, both markers of the reasoning, and the end."""


async def assert_durable(
    client: httpx.AsyncClient, url: str, response_id: str, received: list[str], dice: random.Random
) -> str:
    """Asserts that the replay is a valid, ended stream that begins with the received lines. Returns its status."""
    replayed = await replay(client, url, response_id)
    assert replayed[: len(received)] == received, f"{response_id}: received events have changed"
    response = check_stream([json.loads(line) for line in replayed])
    after = dice.randrange(-1, len(replayed))
    assert await replay(client, url, response_id, after) == replayed[after + 1 :], (
        "a replay after event N begins with N+1"
    )
    assert (await client.get(f"{url}/responses/{response_id}")).json() == response
    texts = ["".join(part["text"] for part in item["content"]) for item in response["output"]]
    assert texts == ["Let me see.", "word " * 40], f"{response_id}: {response['error']}"
    assert response["usage"]["output_tokens"] == NUM_OUTPUT_TOKENS, "each token counts once"
    return str(response["status"])


@pytest.mark.timeout(300 + 20 * NUM_KILLS)
async def test_received_events_survive_kills_unchanged(place: StorePlace) -> None:
    dice, received = random.Random(11), ReceivedEvents()
    limits, statuses, num_kills = httpx.Limits(max_connections=None), dict[str, Any](), 0
    while num_kills < NUM_KILLS or not received:  # a busy machine kills some servers before their first event
        async with run_server(place) as (url, kill), httpx.AsyncClient(timeout=HANG_TIMEOUT_S, limits=limits) as client:
            for response_id in [response_id for response_id in received if response_id not in statuses]:
                statuses[response_id] = await assert_durable(client, url, response_id, received[response_id], dice)
            readers = [asyncio.create_task(read_until_killed(client, url, received)) for _ in range(NUM_STREAMS)]
            await asyncio.sleep(dice.uniform(0.0, 0.4))
            kill()
            num_kills += 1
            await asyncio.gather(*readers)
    async with run_server(place) as (url, _), httpx.AsyncClient(timeout=HANG_TIMEOUT_S, limits=limits) as client:
        for response_id, lines in received.items():
            statuses[response_id] = await assert_durable(client, url, response_id, lines, dice)
    counts = {status: list(statuses.values()).count(status) for status in set(statuses.values())}
    print(f"{num_kills} kills, {len(received)} responses received: {counts}")
    assert set(counts) == {"completed"}


async def test_second_process_follows_the_first_and_continues_with_its_responses(place: StorePlace) -> None:
    dice, received = random.Random(12), ReceivedEvents()
    async with (
        run_server(place) as (url, kill),
        run_server(place) as (other_url, _),
        httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as client,
    ):
        reading = asyncio.create_task(read_until_killed(client, url, received))
        response_id = (await client.post(f"{url}/responses", json={**STREAM_BODY, "stream": False})).json()["id"]
        replayed = await replay(client, other_url, response_id)
        assert replayed == await replay(client, url, response_id), "the other process follows the running stream"
        assert check_stream([json.loads(line) for line in replayed])["status"] == "completed"
        await reading
        (complete,) = received.values()
        assert json.loads(complete[-1])["response"]["status"] == "completed"
        abandoned_id = (await client.post(f"{url}/responses", json={**STREAM_BODY, "stream": False})).json()["id"]
        following = asyncio.create_task(replay(client, other_url, abandoned_id))
        await asyncio.sleep(0.1)
        kill()
        lines = await asyncio.wait_for(following, HANG_TIMEOUT_S)
        assert await assert_durable(client, other_url, abandoned_id, lines, dice) == "completed"


@pytest.mark.timeout(300 + 30 * NUM_KILLS)
async def test_readers_at_another_server_keep_what_they_saw_when_writers_are_killed(place: StorePlace) -> None:
    """Clients read at the server that writes, and at another one that stays. What both saw is the same log."""
    dice, statuses = random.Random(13), list[str]()
    limits = httpx.Limits(max_connections=None)
    async with run_server(place) as (reader_url, _), httpx.AsyncClient(timeout=HANG_TIMEOUT_S, limits=limits) as client:
        for _ in range(NUM_KILLS):
            received, elsewhere = ReceivedEvents(), dict[str, asyncio.Task[list[str]]]()
            async with run_server(place) as (url, kill):
                body = {**STREAM_BODY, "stream": False}
                made = await asyncio.gather(
                    *(client.post(f"{url}/responses", json=body) for _ in range(NUM_CLUSTER_STREAMS // 2))
                )
                for response_id in (reply.json()["id"] for reply in made):
                    elsewhere[response_id] = asyncio.create_task(replay(client, reader_url, response_id))
                readers = [
                    asyncio.create_task(read_until_killed(client, url, received))
                    for _ in range(NUM_CLUSTER_STREAMS // 2)
                ]
                await asyncio.sleep(dice.uniform(0.0, 0.5))
                kill()
                await asyncio.gather(*readers)
            for response_id, task in elsewhere.items():  # each ends, at the latest when the other server ends it
                received[response_id] = await asyncio.wait_for(task, 40)
            for response_id, lines in received.items():
                status = await assert_durable(client, reader_url, response_id, lines, dice)
                assert response_id not in elsewhere or json.loads(lines[-1])["response"]["status"] == status
                statuses.append(status)
    counts = {status: statuses.count(status) for status in set(statuses)}
    print(f"{NUM_KILLS} kills, {len(statuses)} responses received: {counts}")
    assert set(counts) == {"completed"}


@pytest.mark.timeout(300 + 20 * NUM_KILLS)
async def test_rolling_restart_ends_no_response_in_the_background(place: StorePlace) -> None:
    """Each server is told to end as soon as the next one serves. Its responses continue at that one."""
    dice, ids = random.Random(14), list[str]()
    body = {**STREAM_BODY, "stream": False}
    async with httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as client, AsyncExitStack() as servers:
        for _ in range(10 if FULL_COUNTS else 2):
            async with AsyncExitStack() as old:
                url, stop = await old.enter_async_context(run_server(place, signal.SIGTERM))
                made = await asyncio.gather(*(client.post(f"{url}/responses", json=body) for _ in range(6)))
                ids += [reply.json()["id"] for reply in made]
                await servers.aclose()  # ends the one before, at which responses run
                servers.push_async_exit(old.pop_all())
                servers.callback(stop)
                await asyncio.sleep(dice.uniform(0.0, 0.3))
        for response_id in ids:
            assert await assert_durable(client, url, response_id, [], dice) == "completed"


class PausedReader:
    """Reads a stream of a server that pauses meanwhile."""

    def __init__(self, client: httpx.AsyncClient, url: str, *, background: bool) -> None:
        self.lines: list[str] = []
        self.is_cut = False
        self._client, self._url = client, url
        self._body = STREAM_BODY | {"input": "Slow", "background": background}
        self.task = asyncio.create_task(self._read())

    @property
    def response_id(self) -> str:
        return str(json.loads(self.lines[0])["response"]["id"])

    async def _read(self) -> None:
        try:
            async with self._client.stream("POST", f"{self._url}/responses", json=self._body) as reply:
                await append_data_lines(reply, self.lines)
        except httpx.RemoteProtocolError:
            self.is_cut = True


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.mark.timeout(300)
async def test_paused_server_gives_its_readers_what_is_stored(place: StorePlace) -> None:
    """SIGSTOP for longer than the lease: another server takes the responses over, then the first one continues."""
    writers = "SELECT DISTINCT writer FROM responses WHERE writer IS NOT NULL"
    async with (
        run_process(place) as (url, process),
        run_server(place) as (other_url, _),
        httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as client,
    ):
        background, foreground = (PausedReader(client, url, background=each) for each in (True, False))
        await wait_until(lambda: len(background.lines) > 8 and len(foreground.lines) > 8)
        paused = place.read_rows(writers)
        process.send_signal(signal.SIGSTOP)
        try:
            await wait_until(lambda: not set(paused) & set(place.read_rows(writers)))
        finally:
            process.send_signal(signal.SIGCONT)
        await asyncio.wait_for(asyncio.gather(background.task, foreground.task), HANG_TIMEOUT_S)
        for reader in (background, foreground):
            stored = await replay(client, other_url, reader.response_id)
            assert reader.lines == stored == await replay(client, url, reader.response_id)
            assert check_stream([json.loads(line) for line in stored])["status"] == "completed" and not reader.is_cut
