"""Responses of dead processes, which may be long: what is written while their logs are read, and what becomes of them."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.app.inspection.summaries import RESTARTED_CODE
from antiphon.app.store.history import claimed_responses
from antiphon.app.store.history.event_tables import EventTables
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.continuation import Continuation
from antiphon.app.turn_types.event_log import EventLog, is_terminal
from tests.app.store.store_helpers import StorePlace, add_log, make_response, make_steps, take_over
from tests.progress import HANG_TIMEOUT_S

CONTINUATION = Continuation(model="m", digest="d", data=b"what the model was given")


async def leave_response(place: StorePlace, continuation: Continuation | None = None) -> str:
    """Stores half of a response by a process that ends. Returns the id."""
    async with place.open() as store:
        log = EventLog(make_response("left", background=True), "me")
        log.continuation = continuation
        for number, step in enumerate(make_steps()[:2]):
            log.append_step(step)
            if number == 0:
                store.add_log(log)
    return log.id


async def read_end(store: ResponseStore, response_id: str) -> EventLog:
    """Returns the log of a response that ends."""
    async with asyncio.timeout(HANG_TIMEOUT_S):
        log = await store.read_log("me", response_id)
        assert log is not None
        await log.wait_finished()
    return log


class HeldReads:
    """Reads of events in the database, which wait until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun, self.is_released = threading.Event(), threading.Event()
        original = EventTables.iterate_entries

        def hold(tables: EventTables, *values: Any) -> Iterator[Any]:
            self.has_begun.set()
            assert self.is_released.wait(HANG_TIMEOUT_S)
            return original(tables, *values)

        monkeypatch.setattr(EventTables, "iterate_entries", hold)


@pytest.mark.parametrize("continuation", [None, CONTINUATION], ids=["ends", "goes on"])
async def test_other_streams_are_committed_while_the_log_of_a_claimed_response_is_read(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch, continuation: Continuation | None
) -> None:
    claimed: asyncio.Future[EventLog] = asyncio.get_running_loop().create_future()
    held = HeldReads(monkeypatch)
    async with place.open() as store:
        try:
            store.continue_turns({"m": "d"}, 60.0, claimed.set_result)
            left_id = await leave_response(place, continuation)
            assert await asyncio.to_thread(held.has_begun.wait, HANG_TIMEOUT_S), "the response was claimed"
            other = add_log(store, "other", background=True)
            await asyncio.wait_for(other.wait_finished(), HANG_TIMEOUT_S)  # its last step is published once committed
            assert place.read_rows(f"SELECT writer FROM responses WHERE id = '{other.id}'") == [(None,)]
            assert not claimed.done()
        finally:
            held.is_released.set()
        if continuation is None:
            log = await read_end(store, left_id)
            assert RESTARTED_CODE in log.entries[-1].data.decode()
        else:
            log = await asyncio.wait_for(claimed, HANG_TIMEOUT_S)
            assert (log.id, log.continuation) == (left_id, continuation)
            assert not is_terminal(log.entries)


async def test_claimed_response_that_cannot_be_read_yet_is_read_again(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimed_responses, "CLAIM_RETRY_S", 0.01)
    original, faults = EventTables.iterate_entries, [OSError("the disk is away"), OSError("the disk is away")]

    def fail(tables: EventTables, *values: Any) -> Iterator[Any]:
        if faults:
            raise faults.pop()
        return original(tables, *values)

    left_id = await leave_response(place)
    monkeypatch.setattr(EventTables, "iterate_entries", fail)
    async with place.open() as store:
        while faults:
            await asyncio.sleep(0.01)
        assert RESTARTED_CODE in (await read_end(store, left_id)).entries[-1].data.decode()


async def test_claimed_response_that_is_taken_over_while_it_is_read_is_left_to_its_new_process(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "antiphon.app.store.writing.writer_lease.HeartbeatWatch.is_alive", lambda _, name, __: name in alive
    )
    alive = {"elsewhere"}
    held = HeldReads(monkeypatch)
    async with place.open() as store:
        alive.add(store.name)
        try:
            left_id = await leave_response(place)
            assert await asyncio.to_thread(held.has_begun.wait, HANG_TIMEOUT_S)
            database = place.open_database()
            await asyncio.to_thread(take_over, database, left_id, store.name, "elsewhere")
            database.close()
        finally:
            held.is_released.set()
        other = add_log(store, "other", background=True)
        await asyncio.wait_for(other.wait_finished(), HANG_TIMEOUT_S)
        task = store._claimed._task
        assert task is not None
        await asyncio.wait_for(asyncio.shield(task), HANG_TIMEOUT_S)
        events = place.read_rows(f"SELECT count(*) FROM events WHERE response = '{left_id}'")
    assert events == [(sum(map(len, make_steps()[:2])),)]


async def test_unreadable_claimed_response_is_deleted(place: StorePlace) -> None:
    left_id = await leave_response(place)
    place.read_rows(f"UPDATE events SET data = {place.quote_bytes('{')} WHERE response = '{left_id}' AND number = 1")
    async with place.open() as store:
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while place.read_rows("SELECT id FROM responses"):
                await asyncio.sleep(0.01)
        assert await store.read_log("me", left_id) is None
