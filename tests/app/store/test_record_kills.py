"""`kill -9` of servers that record turns in their store: each record has its turn, and each block its users."""

import asyncio
import random

import httpx
import pytest

from tests.app.store.killed_servers import read_until_killed, replay, run_server
from tests.app.store.store_helpers import StorePlace, read_uses
from tests.counts import FULL_COUNTS
from tests.progress import HANG_TIMEOUT_S

pytestmark = pytest.mark.processes

NUM_KILLS = 40 if FULL_COUNTS else 2
NUM_TURNS = 8


async def test_kill_leaves_no_orphan_blocks_and_no_record_without_its_turn(place: StorePlace) -> None:
    dice, limits = random.Random(15), httpx.Limits(max_connections=None)
    received: dict[str, list[str]] = {}
    for _ in range(NUM_KILLS):
        async with (
            run_server(place, inspect="store") as (url, kill),
            httpx.AsyncClient(timeout=HANG_TIMEOUT_S, limits=limits) as client,
        ):
            readers = [asyncio.create_task(read_until_killed(client, url, received)) for _ in range(4)]
            bodies = [{"model": "scripted", "input": "hi " * 300 + str(number)} for number in range(NUM_TURNS)]
            asked = [asyncio.create_task(client.post(f"{url}/responses", json=body)) for body in bodies]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(dice.uniform(0, 0.05))  # the last steps of the others are written now
            kill()
            await asyncio.gather(*readers)
            replies = await asyncio.gather(*asked, return_exceptions=True)
        ended = {each.json()["id"] for each in replies if isinstance(each, httpx.Response)}
        assert ended and ended <= {row[0] for row in place.read_rows("SELECT id FROM turn_records")}
        read_uses(place)
        unknown = "SELECT id FROM turn_records WHERE id NOT IN (SELECT id FROM turn_summaries)"
        running = "SELECT id FROM turn_records WHERE id IN (SELECT id FROM responses WHERE writer IS NOT NULL)"
        assert place.read_rows(unknown) == [] and place.read_rows(running) == []
    async with run_server(place, inspect="store") as (url, _), httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as client:
        for response_id in received:
            await replay(client, url, response_id)
    read_uses(place)
