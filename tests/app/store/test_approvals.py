"""`ResponseStore.use_approvals`: good once, whoever asks, durable when it answers, and forgotten only when it expired."""

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.store.database import Database
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.store.writing.upkeep import MAX_CLOCK_DIFFERENCE_S, StoreUpkeep
from antiphon.app.turn_types.tool_rules import MAX_APPROVAL_AGE_S
from tests.app.store.store_helpers import StorePlace
from tests.counts import FULL_COUNTS
from tests.progress import HANG_TIMEOUT_S
from tests.syntax import ROOT

pytestmark = pytest.mark.processes

NONCE = "0123456789abcdef" * 2
NUM_RACES = 200 if FULL_COUNTS else 20
RACE_PROGRAM = """
import asyncio, sys
sys.path.insert(0, ROOT)
from pathlib import Path
from antiphon.app.options.settings import Settings
from antiphon.app.store.factory import open_store

async def main(path, count):
    where = {"store_url": path} if path.startswith("postgresql:") else {"store_file": Path(path)}
    store = open_store(Settings(**where))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        print(int(await store.use_approvals("me", [f"{number:032x}"])), flush=True)
    sys.stdin.readline()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
"""Uses as many approvals as its second argument says, and prints for each whether it was the first. It never exits."""


def count_used(place: StorePlace) -> int:
    return int(place.read_rows("SELECT count(*) FROM used_approvals")[0][0])


async def test_approval_is_good_once_for_its_owner(place: StorePlace) -> None:
    async with place.open() as store:
        assert await store.use_approvals("me", [NONCE])
        assert not await store.use_approvals("me", [NONCE])
        assert await store.use_approvals("you", [NONCE]) and await store.use_approvals("me", [NONCE[::-1]])
    async with place.open() as store:
        assert not await store.use_approvals("me", [NONCE]), "also after a restart"


async def test_released_approval_is_good_again_for_its_owner(place: StorePlace) -> None:
    async with place.open() as store:
        for owner in ("me", "you"):
            assert await store.use_approvals(owner, [NONCE])
        await store.release_approvals("me", [NONCE]).wait_done()
        assert await store.use_approvals("me", [NONCE]) and not await store.use_approvals("you", [NONCE])


async def test_approval_is_on_disk_when_it_is_granted(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[bool] = []
    commit = place.database_class.commit

    def record_commit(database: Database) -> None:
        if database.query_rows("SELECT count(*) FROM used_approvals")[0][0]:
            levels.append(place.is_synced(database))
        time.sleep(0.1)
        commit(database)

    monkeypatch.setattr(place.database_class, "commit", record_commit)
    async with place.open() as store:
        assert await store.use_approvals("me", [NONCE])
        assert count_used(place) == 1 and levels[0]


async def test_concurrent_requests_get_one_approval(place: StorePlace) -> None:
    async with place.open() as first, place.open() as second:
        for number in range(NUM_RACES):
            stores = (first, second) * 4
            results = await asyncio.gather(*(store.use_approvals("me", [f"{number:032x}"]) for store in stores))
            assert Counter(results) == {True: 1, False: 7}


def test_concurrent_transactions_get_one_approval(place: StorePlace) -> None:
    """Each of two connections begins its transaction before the other one commits, if the database lets it."""
    databases = [place.open_database() for _ in range(2)]
    barrier = threading.Barrier(2)

    def use_all(database: Database) -> list[bool]:
        results: list[bool] = []
        for number in range(NUM_RACES):
            barrier.wait(HANG_TIMEOUT_S)
            database.begin(sync=True)
            results.append(database.use_approvals("me", [f"{number:032x}"], 1.0))
            time.sleep(0.002)
            database.commit()
        return results

    async def open_and_close() -> None:
        async with place.open():
            pass

    asyncio.run(open_and_close())  # creates the tables
    with ThreadPoolExecutor(max_workers=2) as pool:
        first, second = pool.map(use_all, databases)
    assert [one + other for one, other in zip(first, second, strict=True)] == [1] * NUM_RACES
    for database in databases:
        database.close()


def test_one_of_two_processes_gets_the_approval_and_keeps_it_when_killed(place: StorePlace) -> None:
    program = RACE_PROGRAM.replace("ROOT", repr(str(ROOT)))
    command = [sys.executable, "-c", program, place.name, str(NUM_RACES)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [[int(process.stdout.readline()) for _ in range(NUM_RACES)] for process in processes]  # type: ignore[union-attr]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [sum(pair) for pair in zip(*results, strict=True)] == [1] * NUM_RACES
    assert count_used(place) == NUM_RACES

    async def use_again() -> bool:
        async with place.open() as store:
            return await store.use_approvals("me", [f"{0:032x}"])

    assert not asyncio.run(use_again())


async def test_approval_stays_unused_if_it_cannot_be_stored(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.store.writing.writer.MAX_TRIES", 2)

    def fail(*_: object) -> None:
        raise OSError("database or disk is full")

    async with place.open() as store:
        with monkeypatch.context() as patch:
            patch.setattr(place.database_class, "commit", fail)
            with pytest.raises(ApiError) as caught:
                await store.use_approvals("me", [NONCE])
            assert (caught.value.status, caught.value.code) == (503, "storage_unavailable")
        assert count_used(place) == 0 and await store.use_approvals("me", [NONCE])


async def test_repeated_transaction_grants_the_approval(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first attempt was rolled back, so the second one is not a second use."""
    commit, failures = place.database_class.commit, [OSError("database or disk is full")]

    def fail_once(database: Database) -> None:
        if failures and database.query_rows("SELECT count(*) FROM used_approvals")[0][0]:
            raise failures.pop()
        commit(database)

    async with place.open() as store:
        monkeypatch.setattr(place.database_class, "commit", fail_once)
        assert await store.use_approvals("me", [NONCE]) and not failures


async def test_record_of_a_use_is_deleted_once_nobody_could_use_it_again(place: StorePlace) -> None:
    async with place.open():
        pass
    database, now = place.open_database(), 2_000_000_000
    ages = {"new": 0, "old": MAX_APPROVAL_AGE_S + MAX_CLOCK_DIFFERENCE_S, "expired": MAX_APPROVAL_AGE_S * 2}
    database.begin(sync=True)
    for nonce, age in ages.items():
        assert database.use_approvals("me", [nonce], now - age)
    database.commit()
    StoreUpkeep(database, "w", lambda *_: True).delete_expired(now, retention_s=1.0, max_bytes=1 << 30)
    assert sorted(place.read_rows("SELECT nonce FROM used_approvals")) == [("new",), ("old",)]
    database.close()


async def test_store_in_memory_grants_an_approval_once() -> None:
    store = MemoryStore()
    try:
        results = await asyncio.gather(*(store.use_approvals("me", [NONCE]) for _ in range(8)))
        assert Counter(results) == {True: 1, False: 7}
    finally:
        await store.close()
