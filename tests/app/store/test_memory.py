"""The store in memory: its limits, what it shares between threads, and that nothing of it reaches the disk."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.requests.chat.stored import CompletionsQuery
from antiphon.app.store.history.step_rows import NewStep
from antiphon.app.store.sqlite.database import MemoryDatabase, SqliteDatabase
from antiphon.app.store.sqlite.store import MemoryStore
from tests.app.store.store_helpers import add_completion, add_log, make_steps
from tests.progress import HANG_TIMEOUT_S


@asynccontextmanager
async def open_memory_store(**limits: Any) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(**limits)
    try:
        yield store
    finally:
        await store.close()


def stored_ids(store: MemoryStore) -> list[str]:
    rows = store.debug.database.query_rows("SELECT id FROM responses ORDER BY created, id")
    return [row[0] for row in rows]


async def wait_for_ids(store: MemoryStore, expected: list[str]) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while stored_ids(store) != expected:
            await asyncio.sleep(0.02)


async def test_oldest_finished_responses_are_deleted_above_the_limit() -> None:
    async with open_memory_store(max_responses=3) as store:
        running = add_log(store, "running", count=2, created=1)
        for age in range(6):
            await add_log(store, f"x{age}", created=10 + age).wait_published()
        await wait_for_ids(store, ["resp_running", "resp_x4", "resp_x5"])
        assert await store.read_log("me", running.id) is running, "a running response is never deleted"
        store.debug.logs.recent.clear()
        assert await store.read_log("me", "resp_x3") is None and await store.read_log("me", "resp_x5") is not None


async def test_size_of_a_response_counts_when_it_has_ended() -> None:
    async with open_memory_store() as store:
        await add_log(store, "a", created=1).wait_published()
        size = store.debug.database.query_rows("SELECT sum(size) FROM responses")[0][0]
    async with open_memory_store(max_bytes=int(size * 2.5)) as store:
        grown = add_log(store, "grown", count=1, created=1)
        for age in range(4):
            await add_log(store, str(age), created=10 + age).wait_published()
        await wait_for_ids(store, ["resp_grown", "resp_2", "resp_3"])
        for step in make_steps()[1:]:
            grown.append_step(step)
        grown.end_log()
        await grown.wait_published()
        await wait_for_ids(store, ["resp_2", "resp_3"])


async def test_completion_is_deleted_as_a_whole_and_not_while_a_choice_runs() -> None:
    async with open_memory_store(max_responses=4) as store:
        running = await add_completion(store, "running", counts=(4, 2), created=1)
        first = await add_completion(store, "first", created=2)
        query = CompletionsQuery(limit=10)
        assert [each.id for each in store.list_completions("me", query) or ()] == [first.id]
        last = add_log(store, "b")
        await wait_for_ids(store, [*running.choice_ids, last.id])
        assert store.list_completions("me", query) == []


async def test_old_responses_do_not_expire() -> None:
    async with open_memory_store() as store:
        await add_log(store, "old", created=1).wait_published()
        await asyncio.sleep(0.6)
        assert stored_ids(store) == ["resp_old"]


async def test_steps_of_a_background_response_are_shown_at_once(memory_store: MemoryStore) -> None:
    log = add_log(memory_store, "a", count=3, background=True)
    assert log.published == len(log.entries)
    log.append_step(make_steps()[3])
    assert log.published == len(log.entries) - len(make_steps()[3]), "the last one is stored first"
    log.end_log()
    assert (await log.wait_finished()).status == "completed"
    memory_store.debug.logs.recent.clear()
    found = await memory_store.read_log("me", log.id)
    assert found is not None and found is not log and found.entries == log.entries


def test_reader_waits_for_the_end_of_a_transaction() -> None:
    database, counted = MemoryDatabase(10), threading.Event()
    counts: list[int] = []

    def count() -> None:
        counts.append(database.count_events("resp_a"))
        counted.set()

    for end in (database.rollback, database.commit):
        database.begin(sync=False)
        database.query_rows("INSERT INTO events (response, number, data) VALUES ('resp_a', 0, x'00')")
        threading.Thread(target=count).start()
        assert not counted.wait(0.1)
        end()
        assert counted.wait(HANG_TIMEOUT_S)
        counted.clear()
    assert counts == [0, 1]
    database.rollback()  # no transaction: other threads must not be locked out
    threading.Thread(target=count).start()
    assert counted.wait(HANG_TIMEOUT_S)
    database.close()


def test_failed_begin_does_not_lock_out_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    database = MemoryDatabase(10)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteDatabase, "begin", raise_error)
        with pytest.raises(ZeroDivisionError):
            database.begin(sync=False)
    database.rollback()
    done = threading.Event()
    threading.Thread(target=lambda: database.count_events("resp_a") or done.set()).start()
    assert done.wait(HANG_TIMEOUT_S)
    database.close()


def raise_error(*_: object, **__: object) -> None:
    raise ZeroDivisionError


async def test_nothing_is_written_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    before = opened_files()
    async with open_memory_store() as store:
        query = store.debug.database.query_rows
        assert query("PRAGMA database_list")[0][2] == ""
        assert query("PRAGMA temp_store")[0][0] == 2, "sorting needs no temporary file either"
        assert query("PRAGMA journal_mode")[0][0] == "memory"
        for number in range(20):
            await add_log(store, str(number)).wait_published()
        database = store.debug.database
        database.begin(sync=True)
        database.append_steps([NewStep("me", "resp_0", [])], store.name)
        assert opened_files() <= before
        database.commit()
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240  # the test has ended


def opened_files() -> set[str]:
    """Returns the regular files that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.exists() and link.is_file()]
    return {str(link.readlink()) for link in links}
