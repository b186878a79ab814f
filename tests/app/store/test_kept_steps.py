"""`EventLog.wait_kept`: a tool is called only once the step that says so is committed, and not if it never will be."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from msgspec import structs

from antiphon.app.store.database import Database
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.turn_types.event_log import EventLog, begins_tool_run
from antiphon.events.base import Event
from antiphon.events.hosted_events import (
    CodeInterpreterCallInterpretingEvent,
    FileSearchCallSearchingEvent,
    McpCallArgumentsDeltaEvent,
    McpCallArgumentsDoneEvent,
    McpCallInProgressEvent,
    WebSearchCallSearchingEvent,
)
from tests.app.store.store_helpers import SqlitePlace, StorePlace, add_log, make_response, make_steps, take_over
from tests.progress import HANG_TIMEOUT_S

RUN_EVENTS = (
    CodeInterpreterCallInterpretingEvent, FileSearchCallSearchingEvent, WebSearchCallSearchingEvent
)  # fmt: skip
"""Events without more fields that say that a tool is about to run."""


@pytest.fixture
def commit_gate(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While this is not set, no transaction ends."""
    gate, commit = threading.Event(), place.database_class.commit
    gate.set()

    def wait_and_commit(database: Database) -> None:
        assert gate.wait(HANG_TIMEOUT_S)
        commit(database)

    monkeypatch.setattr(place.database_class, "commit", wait_and_commit)
    yield gate
    gate.set()


async def wait_kept(log: EventLog) -> bool:
    return await asyncio.wait_for(log.wait_kept(), HANG_TIMEOUT_S)


def count_rows(place: StorePlace, log: EventLog) -> int:
    return int(place.read_rows(f"SELECT count(*) FROM events WHERE response = '{log.id}'")[0][0])


def append_next(log: EventLog, number: int) -> None:
    log.append_step(make_steps()[number])


def create_log(name: str = "a", *, store: bool = True) -> EventLog:
    """Returns a log with its first step, in no store."""
    log = EventLog(structs.replace(make_response(name), store=store), "me")
    append_next(log, 0)
    return log


def raise_disk_full(*_: object) -> None:
    raise OSError("database or disk is full")


@pytest.mark.parametrize("background", [False, True])
async def test_entries_are_in_the_database_when_the_wait_ends(place: StorePlace, *, background: bool) -> None:
    async with place.open() as store:
        log = add_log(store, "a", count=1, background=background)
        for number in (1, 2, 3):
            assert await wait_kept(log) and count_rows(place, log) == len(log.entries)
            append_next(log, number)
        log.end_log()
        assert await wait_kept(log) and count_rows(place, log) == len(log.entries)


async def test_published_step_is_waited_for(place: StorePlace, commit_gate: threading.Event) -> None:
    async with place.open() as store:
        log = add_log(store, "a", count=1)
        assert await wait_kept(log)
        commit_gate.clear()
        append_next(log, 1)
        waiting = asyncio.create_task(log.wait_kept())
        await asyncio.sleep(0.2)
        assert log.published == len(log.entries) and not waiting.done() and count_rows(place, log) == 2
        log.publish()
        await asyncio.sleep(0.1)
        assert not waiting.done(), "publication is no commit"
        commit_gate.set()
        assert await asyncio.wait_for(waiting, HANG_TIMEOUT_S) and count_rows(place, log) == len(log.entries)


async def test_wait_before_the_log_has_a_store_is_for_it(place: StorePlace) -> None:
    async with place.open() as store:
        log = create_log()
        waiting = asyncio.create_task(log.wait_kept())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        store.add_log(log)
        assert await asyncio.wait_for(waiting, HANG_TIMEOUT_S) and count_rows(place, log) == len(log.entries)


async def test_log_that_is_not_to_be_stored_has_nothing_to_wait_for() -> None:
    assert await wait_kept(create_log(store=False))


async def test_cancelled_wait_leaves_the_others(place: StorePlace) -> None:
    async with place.open() as store:
        log = create_log()
        waits = [asyncio.create_task(log.wait_kept()) for _ in range(3)]
        await asyncio.sleep(0)
        waits[0].cancel()
        store.add_log(log)
        assert await asyncio.gather(*waits[1:]) == [True, True]
        assert waits[0].cancelled() and not log._kept_signals


async def test_failed_write_is_no_commit_also_after_its_repair(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.app.store.writing.writer.MAX_TRIES", 1)
    async with place.open() as store:
        log = add_log(store, "a", count=1)
        assert await wait_kept(log)
        with monkeypatch.context() as patch:
            patch.setattr(place.database_class, "append_steps", raise_disk_full)
            append_next(log, 1)
            waiting = asyncio.create_task(log.wait_kept())
            assert not await asyncio.wait_for(waiting, HANG_TIMEOUT_S), "the wait began before the failure"
        assert log.published == len(log.entries) and not await wait_kept(log)
        append_next(log, 2)
        append_next(log, 3)
        log.end_log()
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while count_rows(place, log) < len(log.entries):
                await asyncio.sleep(0.02)
        assert not await wait_kept(log)


async def test_deletion_during_the_wait_ends_it(place: StorePlace, commit_gate: threading.Event) -> None:
    async with place.open() as store:
        log = add_log(store, "a", count=1)
        assert await wait_kept(log)
        commit_gate.clear()
        append_next(log, 1)
        waiting = asyncio.create_task(log.wait_kept())
        await asyncio.sleep(0.1)
        deleting = asyncio.create_task(store.delete_response("me", log.id))
        assert not await asyncio.wait_for(waiting, HANG_TIMEOUT_S)
        commit_gate.set()
        assert await deleting and not await wait_kept(log)


async def test_deletion_after_the_commit_is_seen_by_the_wait(place: StorePlace) -> None:
    """The commit is reported to the wait, and the log is deleted before the waiting task runs."""
    async with place.open() as store:
        log = add_log(store, "a", count=1)
        assert await wait_kept(log)
        append_next(log, 1)
        waiting = asyncio.create_task(log.wait_kept())
        await asyncio.sleep(0)
        log.mark_kept(len(log.entries))
        deleting = store.debug.logs.delete("me", [log.id])
        assert not await waiting
        await deleting.wait_done()


async def test_log_that_another_process_deletes_is_given_up(place: StorePlace) -> None:
    async with place.open() as store, place.open() as other:
        log = add_log(store, "a", count=1)
        assert await wait_kept(log)
        assert await other.delete_response("me", log.id)
        append_next(log, 1)
        assert not await wait_kept(log)


async def test_log_that_another_process_took_over_is_given_up(place: StorePlace) -> None:
    async with place.open() as store:
        store._writer._upkeep._is_alive = lambda *_: True  # type: ignore[method-assign]
        log = add_log(store, "a", count=1)
        assert await wait_kept(log)
        database = place.open_database()
        take_over(database, log.id, store.name, "other")
        append_next(log, 1)
        assert not await wait_kept(log)
        assert len(database.load_entries(log.id)) == len(make_steps()[0])
        database.close()


async def test_store_in_memory_keeps_a_log_until_it_is_deleted() -> None:
    store = MemoryStore()
    try:
        log = create_log()
        waiting = asyncio.create_task(log.wait_kept())
        await asyncio.sleep(0)
        assert not waiting.done()
        store.add_log(log)
        assert await waiting
        append_next(log, 1)
        assert await wait_kept(log)
        deleting = store.debug.logs.delete("me", [log.id])
        assert not await wait_kept(log)
        await deleting.wait_done()
    finally:
        await store.close()


def make_tool_steps() -> list[list[Event]]:
    """Returns steps that each begin the run of a tool, for a log with the first step of a turn."""
    steps: list[list[Event]] = []
    number = len(make_steps()[0])
    for kind in RUN_EVENTS:
        steps.append([kind(sequence_number=number, item_id="x_1", output_index=0)])
        number += 1
    delta = McpCallArgumentsDeltaEvent(sequence_number=number, item_id="mcp_1", output_index=0, delta="{}")
    done = McpCallArgumentsDoneEvent(sequence_number=number + 1, item_id="mcp_1", output_index=0, arguments="{}")
    progress = McpCallInProgressEvent(sequence_number=number + 2, item_id="mcp_1", output_index=0)
    return [*steps, [delta, done, progress]]


def test_step_that_begins_a_run_is_known_by_any_of_its_events() -> None:
    log = create_log()
    assert not begins_tool_run(log.entries)
    for step in make_tool_steps():
        first = len(log.entries)
        log.append_step(step)
        assert begins_tool_run(log.entries[first:])
    assert not begins_tool_run(log.entries[-1:]) and not begins_tool_run(log.entries[-3:-2])


async def test_step_that_begins_a_run_is_committed_with_a_sync(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: dict[int, bool] = {}
    commit = place.database_class.commit

    def record_commit(database: Database) -> None:
        count = database.query_rows("SELECT count(*) FROM events")[0][0]
        levels.setdefault(count, place.is_synced(database))
        commit(database)

    monkeypatch.setattr(place.database_class, "commit", record_commit)
    async with place.open() as store:
        log = create_log()
        store.add_log(log)
        assert await wait_kept(log)
        for step in make_tool_steps():
            log.append_step(step)
            assert await wait_kept(log)
            assert levels[len(log.entries)]
    if isinstance(place, SqlitePlace):
        assert not levels[len(make_steps()[0])], "other steps are not"
