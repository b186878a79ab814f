"""What both persistent stores promise: durability before publication, recovery, and the lease between two processes."""

import asyncio
import random
import threading
from typing import Any

import msgspec
import pytest

from antiphon.app.store.batches.records import StoredFile
from antiphon.app.store.database import Database
from antiphon.app.store.history.step_rows import NewStep
from antiphon.app.store.writing.write_ops import StoreTimings
from antiphon.app.turn_types.event_log import EventLog
from tests.app.store.store_helpers import (
    SqlitePlace,
    StorePlace,
    add_completion,
    add_log,
    becomes_true,
    make_response,
    make_steps,
    take_over,
)
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.state.machine_helpers import convert_events_to_json, create_machine


def entry_data(log: EventLog) -> list[bytes]:
    return [entry.data for entry in log.entries]


async def test_response_is_found_after_a_restart(place: StorePlace) -> None:
    async with place.open() as store:
        log = add_log(store, "a")
    async with place.open() as store:
        found = await store.read_log("me", "resp_a")
        assert found is not None and found is not log and found.ended
        assert (
            entry_data(found) == entry_data(log)
            and found.base_response == log.base_response
            and found.input_items == log.input_items
        )
        assert found.response == log.entries[-1].event.response  # type: ignore[attr-defined]
        assert await store.read_log("you", "resp_a") is None and await store.read_log("me", "resp_b") is None
        assert await store.read_log("me", "resp_a") is found, "the second lookup does not read the file"


async def test_background_step_is_published_after_its_commit(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.open() as store:
        log = add_log(store, "a", count=2, background=True)
        assert log.published == 0 and log.response.status == "in_progress"
        await log.wait_published()
        assert log.published == len(log.entries)
        database = place.open_database()
        assert [entry.data for entry in database.load_entries("resp_a")] == entry_data(log)
        log.append_step(make_steps()[2])
        assert log.published < len(log.entries)
        await log.wait_published()
        assert len(database.load_entries("resp_a")) == len(log.entries)
        database.close()


async def test_foreground_response_waits_for_the_commit_of_its_last_step_only(place: StorePlace) -> None:
    async with place.open() as store:
        log = add_log(store, "a", count=3)
        assert log.published == len(log.entries)
        log.append_step(make_steps()[3])
        log.end_log()
        assert log.published == len(log.entries) - len(make_steps()[3])
        assert (await log.wait_finished()).status == "completed"


async def test_last_step_of_a_response_is_committed_with_a_sync(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kill -9` cannot show a missing sync, only a power cut can, so the test reads the level at each commit."""
    commits: list[tuple[bool, set[str]]] = []
    commit = place.database_class.commit

    def record_commit(database: Database) -> None:
        finished = database.query_rows("SELECT id FROM responses WHERE writer IS NULL")
        commits.append((place.is_synced(database), {row[0] for row in finished}))
        commit(database)

    monkeypatch.setattr(place.database_class, "commit", record_commit)
    async with place.open() as store:
        for name, background in (("a", False), ("b", True)):
            log = add_log(store, name, count=3, background=background)
            await log.wait_published()
            log.append_step(make_steps()[3])
            log.end_log()
            await log.wait_finished()
    for name in ("resp_a", "resp_b"):
        assert next(is_synced for is_synced, finished in commits if name in finished), name
    if isinstance(place, SqlitePlace):
        assert not all(is_synced for is_synced, _ in commits), "other steps of a foreground response are not"


async def test_input_and_output_items_are_found_by_id(place: StorePlace) -> None:
    async with place.open() as store:
        log = add_log(store, "a")
        await log.wait_published()
        for _ in range(2):
            for item in (*log.input_items, *log.response.output):
                assert store.history.item_finder("me")(item.id or "") == item
                assert store.history.item_finder("you")(item.id or "") is None
            store.debug.logs.recent.clear()
        assert store.history.item_finder("me")("msg_none") is None


async def test_deleted_response_is_not_found_and_its_rows_are_removed(place: StorePlace) -> None:
    async with place.open() as store:
        ended, running = add_log(store, "a"), add_log(store, "b", count=2, background=True)
        assert not await store.delete_response("you", "resp_a")
        for log in (ended, running):
            assert (
                await store.delete_response("me", log.id)
                and await store.read_log("me", log.id) is None
                and not await store.delete_response("me", log.id)
            )
        running.append_step(make_steps()[2])
        assert running.published == len(running.entries), "its readers continue"
    assert [place.read_rows(f"SELECT count(*) FROM {name}") for name in ("responses", "events", "items")] == [
        [(0,)]
    ] * 3


async def test_second_process_reads_while_the_first_writes(place: StorePlace) -> None:
    async with place.open() as first, place.open() as second:
        log = add_log(first, "a", count=1, background=True)
        await log.wait_published()
        found = await second.read_log("me", "resp_a")
        assert found is not None and not found.ended and await second.read_log("me", "resp_a") is found
        reading = asyncio.create_task(found.wait_finished())
        for step in make_steps()[1:]:
            await asyncio.sleep(0.06)
            log.append_step(step)
        log.end_log()
        assert (await asyncio.wait_for(reading, HANG_TIMEOUT_S)).status == "completed"
        assert entry_data(found) == entry_data(log)
        assert not second.debug.logs.remote or await becomes_true(lambda: not second.debug.logs.remote)


async def test_response_of_a_dead_writer_is_failed_exactly_once(place: StorePlace) -> None:
    async with place.open(), place.open() as second:
        database = place.open_database()
        abandoned = EventLog(make_response("a", background=True), "me")
        abandoned.append_step([*create_machine().begin(), *make_steps()[1]])
        database.begin(sync=True)
        database.insert_responses([abandoned], "dead")
        database.append_steps([NewStep("me", abandoned.id, abandoned.entries)], "dead")
        database.commit()
        found = await second.read_log("me", "resp_a")
        assert found is not None
        response = await asyncio.wait_for(found.wait_finished(), HANG_TIMEOUT_S)
        assert response.status == "failed" and response.error and response.error.code == "server_restarted"
        check_stream(convert_events_to_json([entry.event for entry in found.entries]))
        assert entry_data(found)[: len(abandoned.entries)] == entry_data(abandoned), (
            "the events of the dead writer stay"
        )
        await asyncio.sleep(0.2)
        assert len(database.load_entries("resp_a")) == len(found.entries), "the response is ended once"
        database.close()


async def test_live_writer_keeps_its_response_until_another_takes_over(place: StorePlace) -> None:
    async with place.open() as store:
        log = add_log(store, "a", count=2, background=True)
        await log.wait_published()
        await asyncio.sleep(0.3)
        assert not log.ended and store.debug.database.find_writer("resp_a") == store.name
        store._writer._upkeep._is_alive = lambda *_: True  # type: ignore[method-assign]
        database = place.open_database()
        take_over(database, "resp_a", store.name, "other")
        database.begin(sync=True)
        assert not database.take_over("resp_a", store.name, "third")
        database.commit()
        num_stored = len(log.entries)
        log.append_step(make_steps()[2])
        assert await becomes_true(lambda: log.is_lost), "the writer drops the step"
        assert log.on_append is None and len(log.entries) == num_stored
        assert database.find_writer("resp_a") == "other" and len(database.load_entries("resp_a")) == num_stored
        database.close()


async def test_database_error_does_not_end_the_writer_thread(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.app.store.writing.writer.MAX_TRIES", 1)
    async with place.open() as store:
        with monkeypatch.context() as patch:
            patch.setattr(place.database_class, "list_orphaned", raise_error)
            patch.setattr(place.database_class, "insert_responses", raise_error)
            first = add_log(store, "a", background=True)
            await asyncio.wait_for(first.wait_finished(), HANG_TIMEOUT_S)
            await asyncio.sleep(0.2)
        second = add_log(store, "b", background=True)
        await asyncio.wait_for(second.wait_finished(), HANG_TIMEOUT_S)
        assert store.debug.database.find_log("me", "resp_b") is not None


def raise_error(*_: object) -> None:
    raise ZeroDivisionError


async def test_old_and_excess_responses_are_deleted_and_running_ones_stay(place: StorePlace) -> None:
    async with place.open(timings=StoreTimings(heartbeat_s=0.05, sweep_interval_s=0.05, retention_s=1e9)) as store:
        add_log(store, "old", created=5)
        add_log(store, "running", count=2, created=6)
        await add_log(store, "new").wait_published()
        assert await becomes_true(lambda: store.debug.database.find_log("me", "resp_old") is None)
        assert store.debug.database.find_log("me", "resp_running") and store.debug.database.find_log("me", "resp_new")
    async with place.open(
        timings=StoreTimings(heartbeat_s=0.05, sweep_interval_s=0.05, retention_s=1e10), max_bytes=1
    ) as store:
        assert await becomes_true(lambda: store.debug.database.find_log("me", "resp_new") is None)


async def test_full_store_deletes_the_oldest_responses_until_the_rest_fits(place: StorePlace) -> None:
    names = ["a", "b", "c", "d"]
    async with place.open() as store:
        for age, name in enumerate(names):
            await add_log(store, name, created=2_000_000_000 + age).wait_published()
    sizes = [row[0] for row in place.read_rows("SELECT size FROM responses ORDER BY created")]
    assert len(sizes) == 4 and all(sizes)
    database = place.open_database()

    def delete_down_to(max_bytes: int) -> list[str]:
        database.begin(sync=False)
        database.delete_expired(0, max_bytes)
        database.commit()
        return [name for name in names if database.find_log("me", f"resp_{name}")]

    assert delete_down_to(sum(sizes)) == names, "a store that is exactly full keeps everything"
    assert delete_down_to(sum(sizes) - 1) == names[1:], "one byte too many costs one response"
    assert delete_down_to(sizes[2] + sizes[3]) == names[2:]
    assert delete_down_to(0) == []
    database.close()


@pytest.mark.parametrize("seed", range(3))
async def test_full_store_takes_from_the_owner_with_the_largest_share(place: StorePlace, seed: int) -> None:
    """Each owner keeps its fair share: what it has, or as much as the largest ones; the newest responses stay."""
    rng = random.Random(seed)
    owners = {"a": rng.randrange(20, 40), "b": rng.randrange(8, 15), "c": rng.randrange(1, 5)}
    names = [owner for owner, count in owners.items() for _ in range(count)]
    rng.shuffle(names)
    async with place.open() as store:
        for age, owner in enumerate(names):
            await add_log(store, f"{owner}{age}", owner=owner, created=2_000_000_000 + age).wait_published()
    rows = place.read_rows("SELECT owner, id, size FROM responses ORDER BY created")
    total = sum(size for _, _, size in rows)
    database = place.open_database()
    for limit in (total * 3 // 4, total // 2, total // 5):
        database.begin(sync=False)
        assert database.delete_expired(0, limit)
        database.commit()
        left = place.read_rows("SELECT owner, id, size FROM responses ORDER BY created")
        shares = {owner: [size for each, _, size in left if each == owner] for owner in owners}
        before = {owner: [row for row in rows if row[0] == owner] for owner in owners}
        assert sum(map(sum, shares.values())) <= limit
        largest = max(map(sum, shares.values()))
        for owner, sizes in shares.items():
            kept = [row for row in left if row[0] == owner]
            assert kept == before[owner][len(before[owner]) - len(kept) :], "an older response of the owner is left"
            if len(sizes) < len(before[owner]):
                assert sum(sizes) + before[owner][-len(sizes) - 1][2] >= largest - max(row[2] for row in rows)
    database.close()


async def test_owner_with_a_limit_keeps_its_newest_responses(place: StorePlace) -> None:
    async with place.open() as store:
        for age in range(6):
            for owner in ("a", "b"):
                await add_log(store, f"{owner}{age}", owner=owner, created=2_000_000_000 + age).wait_published()
    sizes = [size for (size,) in place.read_rows("SELECT size FROM responses WHERE owner = 'a' ORDER BY created")]
    database = place.open_database()
    database.begin(sync=False)
    assert database.delete_expired(0, 2**40, {"a": sum(sizes[-2:]), "unknown": 1})
    database.commit()
    left = [name for (name,) in place.read_rows("SELECT id FROM responses ORDER BY id")]
    assert left == ["resp_a4", "resp_a5", *(f"resp_b{age}" for age in range(6))]
    database.close()


async def test_many_deletions_are_spread_over_transactions(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.store.blobs.evictions.MAX_DELETES_PER_TRANSACTION", 3)
    async with place.open() as store:
        for age in range(7):
            await add_log(store, str(age), created=2_000_000_000 + age).wait_published()
    database = place.open_database()
    results = []
    for _ in range(3):
        database.begin(sync=False)
        results.append(database.delete_expired(0, 0))
        database.commit()
    assert results == [False, False, True] and place.read_rows("SELECT count(*) FROM responses") == [(0,)]
    database.close()


async def test_input_counts_towards_the_size_of_the_store(place: StorePlace) -> None:
    async with place.open() as store:
        log = add_log(store, "a")
        await log.wait_published()
        short, long = await add_completion(store, "a"), await add_completion(store, "b" * 500)
    sizes = dict(place.read_rows("SELECT id, size FROM responses"))
    assert sizes[log.id] == log.size + len(msgspec.json.encode(log.input_items))
    assert sizes[long.id] - sizes[long.choice_ids[1]] >= sizes[short.id] - sizes[short.choice_ids[1]] + 499


async def test_response_completes_though_the_disk_is_full(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.store.writing.writer.MAX_TRIES", 2)
    async with place.open() as store:
        monkeypatch.setattr(place.database_class, "append_steps", raise_disk_full)
        log = add_log(store, "a", background=True)
        assert (await asyncio.wait_for(log.wait_finished(), HANG_TIMEOUT_S)).status == "completed"
        assert await store.read_log("me", "resp_a") is log and log.ended, "it is found until this process exits"


async def test_steps_after_a_failed_one_leave_no_gap(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.store.writing.writer.MAX_TRIES", 1)
    stored: list[list[int]] = []
    queued, commit, append_steps = threading.Event(), place.database_class.commit, place.database_class.append_steps

    def record_commit(database: Database) -> None:
        numbers = database.query_rows("SELECT number FROM events WHERE response = 'resp_a' ORDER BY number")
        stored.append([row[0] for row in numbers])
        commit(database)

    def fail_second_step(database: Database, *args: Any) -> set[str]:
        if args[0] and args[0][0].entries[0].event.sequence_number == len(make_steps()[0]) and not queued.is_set():
            assert queued.wait(10)
            raise_disk_full()
        return append_steps(database, *args)

    monkeypatch.setattr(place.database_class, "commit", record_commit)
    monkeypatch.setattr(place.database_class, "append_steps", fail_second_step)
    async with place.open() as store:
        log = add_log(store, "a", count=1, background=True)
        await log.wait_published()
        log.append_step(make_steps()[1])
        await asyncio.sleep(0.1)  # the writer waits in this step; the next ones are queued behind it
        for step in make_steps()[2:]:
            log.append_step(step)
        log.end_log()
        queued.set()
        assert (await asyncio.wait_for(log.wait_finished(), HANG_TIMEOUT_S)).status == "completed"
        assert await becomes_true(lambda: stored[-1] == list(range(len(log.entries)))), "the log is repaired"
    assert all(numbers == list(range(len(numbers))) for numbers in stored)


async def test_store_reports_itself_unavailable_until_a_write_succeeds(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.app.store.writing.writer.MAX_TRIES", 1)
    async with place.open() as store:
        assert store.unavailable_reason() is None
        with monkeypatch.context() as patch:
            patch.setattr(place.database_class, "begin", raise_disk_full)
            await asyncio.wait_for(add_log(store, "a", background=True).wait_finished(), HANG_TIMEOUT_S)
            assert store.unavailable_reason() == "The response store is not writable."
        for _ in range(100):
            await asyncio.sleep(0.05)
            if store.unavailable_reason() is None:
                break
        assert store.unavailable_reason() is None, "a heartbeat notices that writes succeed again"
        log = add_log(store, "b", background=True)
        assert (await log.wait_finished()).status == "completed"


def raise_disk_full(*_: object) -> None:
    raise OSError("database or disk is full")


async def test_a_read_sees_what_was_committed_before_it(place: StorePlace) -> None:
    """A thread that has not read all its rows must not keep the others at the state of its own begin."""
    started, may_end = threading.Event(), threading.Event()

    def read_slowly(database: Database) -> int:
        rows = iter(database.turns._connection.execute("SELECT id FROM responses ORDER BY id"))
        next(rows)
        started.set()
        may_end.wait(HANG_TIMEOUT_S)
        return len([*rows])

    async with place.open() as store:
        for name in ("a", "b", "c"):
            await add_log(store, name).wait_published()
        slow = asyncio.create_task(store.read(read_slowly))
        await asyncio.to_thread(started.wait, HANG_TIMEOUT_S)
        file = StoredFile(id="file-a", created_at=1, expires_at=None, filename="a", purpose="batch")
        await store.change(lambda database: database.files.insert_file("me", file, store.name))
        await store.change(lambda database: database.files.complete_file(file, store.name))
        assert await store.read(lambda database: database.files.find_file("me", file.id, 2)) == file
        may_end.set()
        assert await slow == 2
