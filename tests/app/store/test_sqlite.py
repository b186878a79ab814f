"""The store on disk: what was shown is there after anything, and two processes agree on who writes."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.event_log import EventLog
from antiphon.app.store.database import Database
from antiphon.app.store.schema import SCHEMA_VERSION, StoreError
from antiphon.app.store.sqlite import SqliteStore
from antiphon.app.store.writer import StoreTimings
from antiphon.app.turns.stored_history import with_ids
from antiphon.events.base import Event
from antiphon.events.inputs import HostedInput, InputMessage
from antiphon.events.response import Response
from antiphon.state.segments import Say
from tests.invariants import check
from tests.state.machine_helpers import machine, plain

QUICK = StoreTimings(heartbeat_s=0.05, lease_s=0.4, sweep_interval_s=0.05)
GIVEN = (InputMessage(role="user", content="hi"), HostedInput(kind="web_search_call", payload={"query": "x"}))


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **{"timings": QUICK, **options})
    try:
        yield store
    finally:
        await store.close()


def head(name: str, *, background: bool = False, created: int = 2_000_000_000) -> Response:
    return Response(id=f"resp_{name}", created_at=created, model="m", background=background, metadata={"a": "b"})


def steps() -> list[list[Event]]:
    m = machine()
    return [m.begin(), m.feed(Say("a")), m.feed(Say("b")), m.stop()]


def begun(store: SqliteStore, name: str, count: int = 4, owner: str = "me", **more: Any) -> EventLog:
    """A log that has said so many of its four steps, kept from the first on."""
    first = head(name, **more)
    log = EventLog(first, owner, with_ids(GIVEN, first.id))
    for number, step in enumerate(steps()[:count]):
        log.append_step(step)
        if number == 0:
            store.add_log(log)
    if count == 4:
        log.end_log()
    return log


def data(log: EventLog) -> list[bytes]:
    return [frame.data for frame in log.entries]


def damage(file: Path) -> int:
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    return len(content)


def size_of(file: Path) -> int:
    return file.stat().st_size


def mode_of(file: Path) -> int:
    return file.stat().st_mode & 0o777


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "responses.db"


async def test_what_was_kept_is_there_for_the_next_process(path: Path) -> None:
    async with opened(path) as store:
        log = begun(store, "a")
    async with opened(path) as store:
        found = store.find_log("me", "resp_a")
        assert found is not None and found is not log and found.ended
        assert (
            data(found) == data(log)
            and found.base_response == log.base_response
            and found.input_items == log.input_items
        )
        assert found.response == log.entries[-1].event.response  # type: ignore[attr-defined]
        assert store.find_log("you", "resp_a") is None and store.find_log("me", "resp_b") is None
        assert store.find_log("me", "resp_a") is found, "the next reader need not read the file again"


async def test_a_background_step_is_shown_when_it_is_safe(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as store:
        log = begun(store, "a", count=2, background=True)
        assert log.published == 0 and log.response.status == "in_progress"
        await log.wait_published()
        assert log.published == len(log.entries)
        other = Database(path)
        assert [frame.data for frame in other.load_entries("resp_a")] == data(log)
        log.append_step(steps()[2])
        assert log.published < len(log.entries)
        await log.wait_published()
        assert len(other.load_entries("resp_a")) == len(log.entries)
        other.close()


async def test_of_any_other_only_the_end_waits_until_it_is_safe(path: Path) -> None:
    async with opened(path) as store:
        log = begun(store, "a", count=3)
        assert log.published == len(log.entries)
        log.append_step(steps()[3])
        log.end_log()
        assert log.published == len(log.entries) - len(steps()[3])
        assert (await log.wait_finished()).status == "completed"


async def test_items_are_found_by_id_both_those_put_in_and_those_put_out(path: Path) -> None:
    async with opened(path) as store:
        log = begun(store, "a")
        await log.wait_published()
        for _ in range(2):
            for item in (*log.input_items, *log.response.output):
                assert store.find_item("me", item.id or "") == item
                assert store.find_item("you", item.id or "") is None
            store._recent.clear()
        assert store.find_item("me", "msg_none") is None


async def test_what_was_deleted_is_gone_at_once_and_for_good(path: Path) -> None:
    async with opened(path) as store:
        ended, running = begun(store, "a"), begun(store, "b", count=2, background=True)
        assert not store.delete_response("you", "resp_a")
        for log in (ended, running):
            assert (
                store.delete_response("me", log.id)
                and store.find_log("me", log.id) is None
                and not store.delete_response("me", log.id)
            )
        running.append_step(steps()[2])
        assert running.published == len(running.entries), "whoever reads it reads on"
    with sqlite3.connect(path) as line:
        assert [
            line.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("responses", "events", "items")
        ] == [0, 0, 0]


async def test_a_second_process_reads_while_the_first_writes(path: Path) -> None:
    async with opened(path) as first, opened(path) as second:
        log = begun(first, "a", count=1, background=True)
        await log.wait_published()
        seen = second.find_log("me", "resp_a")
        assert seen is not None and not seen.ended and second.find_log("me", "resp_a") is seen
        reading = asyncio.create_task(seen.wait_finished())
        for step in steps()[1:]:
            await asyncio.sleep(0.06)
            log.append_step(step)
        log.end_log()
        assert (await asyncio.wait_for(reading, 5)).status == "completed"
        assert data(seen) == data(log)
        assert not second._remote or await settled(lambda: not second._remote)


async def settled(fact: Any) -> bool:
    for _ in range(200):
        if fact():
            return True
        await asyncio.sleep(0.02)
    return False


async def test_what_a_dead_process_left_is_ended_as_failed_once_by_one_of_the_living(path: Path) -> None:
    async with opened(path) as one, opened(path) as two:
        for store in (one, two):
            store.is_alive = lambda name, _: "dead" not in name  # type: ignore[method-assign]
        disk = Database(path)
        left = EventLog(head("a", background=True), "me")
        left.append_step([*machine().begin(), *steps()[1]])
        disk.begin(sync=True)
        disk.insert_response(left, "dead")
        disk.append_events("me", left.id, left.entries, "dead")
        disk.commit()
        seen = two.find_log("me", "resp_a")
        assert seen is not None
        response = await asyncio.wait_for(seen.wait_finished(), 5)
        assert response.status == "failed" and response.error and response.error.code == "server_restarted"
        check(plain([frame.event for frame in seen.entries]))
        assert data(seen)[: len(left.entries)] == data(left), "what was said stays"
        await asyncio.sleep(0.2)
        assert len(disk.load_entries("resp_a")) == len(seen.entries), "nobody ends it twice"
        disk.close()


async def test_the_living_are_left_alone_and_who_comes_back_late_is_told_so(path: Path) -> None:
    async with opened(path) as one:
        log = begun(one, "a", count=2, background=True)
        await log.wait_published()
        await asyncio.sleep(0.3)
        assert not log.ended and one._database.find_writer("resp_a") == one.name
        one.is_alive = lambda *_: True  # type: ignore[method-assign]
        disk = Database(path)
        disk.begin(sync=True)
        assert disk.take_over("resp_a", one.name, "other") and not disk.take_over("resp_a", one.name, "third")
        disk.commit()
        log.append_step(steps()[2])
        await asyncio.wait_for(log.wait_published(), 5)
        assert log.listener is None, "it is kept here no more; its readers do not wait for ever"
        assert disk.find_writer("resp_a") == "other" and len(disk.load_entries("resp_a")) < len(log.entries)
        disk.close()


async def test_a_writer_lives_while_its_process_or_on_another_machine_its_heart_does(path: Path) -> None:
    now = time.time()
    async with opened(path) as store:
        mine = store.name.split(":")
        dead = ":".join([*mine[:2], str(int(mine[2]) + 1), "ab"])  # the same process id, begun at another time
        assert store.is_alive(store.name, 0.0) and not store.is_alive(dead, now)
        for name in ("elsewhere:1:2:ab", "of another version", ""):
            assert store.is_alive(name, now) and not store.is_alive(name, now - 60)


async def test_nothing_that_goes_wrong_ends_the_thread_that_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.store.writer.MAX_TRIES", 1)
    async with opened(path) as store:
        with monkeypatch.context() as broken:
            broken.setattr(Database, "list_orphaned", _broken)
            broken.setattr(Database, "insert_response", _broken)
            first = begun(store, "a", background=True)
            await asyncio.wait_for(first.wait_finished(), 10)
            await asyncio.sleep(0.2)
        second = begun(store, "b", background=True)
        await asyncio.wait_for(second.wait_finished(), 10)
        assert store._database.load_log("me", "resp_b") is not None


def _broken(*_: object) -> None:
    raise ZeroDivisionError


async def test_what_is_old_or_too_much_goes_and_what_runs_stays(path: Path) -> None:
    async with opened(path, timings=StoreTimings(heartbeat_s=0.05, sweep_interval_s=0.05, retention_s=1e9)) as store:
        begun(store, "old", created=5)
        begun(store, "running", count=2, created=6)
        await begun(store, "new").wait_published()
        assert await settled(lambda: store._database.load_log("me", "resp_old") is None)
        assert store._database.load_log("me", "resp_running") and store._database.load_log("me", "resp_new")
    async with opened(
        path, timings=StoreTimings(heartbeat_s=0.05, sweep_interval_s=0.05, retention_s=1e10), max_bytes=1
    ) as store:
        assert await settled(lambda: store._database.load_log("me", "resp_new") is None)


async def test_a_damaged_file_is_put_aside(path: Path) -> None:
    async with opened(path) as store:
        begun(store, "a")
    size = damage(path)
    async with opened(path) as store:
        assert store.find_log("me", "resp_a") is None
        begun(store, "b")
    (aside,) = path.parent.glob("responses.db.damaged-*")
    assert size_of(aside) == size


async def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    async with opened(path):
        pass
    with sqlite3.connect(path) as line:
        line.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StoreError, match="newer Antiphon"):
        SqliteStore(path)


async def test_a_store_that_cannot_be_written_holds_nobody_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.store.writer.MAX_TRIES", 2)
    async with opened(path) as store:
        monkeypatch.setattr(Database, "append_events", _full)
        log = begun(store, "a", background=True)
        assert (await asyncio.wait_for(log.wait_finished(), 10)).status == "completed"
        assert store.find_log("me", "resp_a") is log and log.ended, "it is found as long as this process lives"


async def test_while_nothing_can_be_written_nothing_is_promised_and_it_passes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.app.store.writer.MAX_TRIES", 1)
    async with opened(path) as store:
        assert store.unavailable_reason() is None
        with monkeypatch.context() as broken:
            broken.setattr(Database, "begin", _full)
            await asyncio.wait_for(begun(store, "a", background=True).wait_finished(), 10)
            assert store.unavailable_reason() == "The store cannot be written."
        for _ in range(100):
            await asyncio.sleep(0.05)
            if store.unavailable_reason() is None:
                break
        assert store.unavailable_reason() is None, "the next heartbeat finds it well"
        log = begun(store, "b", background=True)
        assert (await log.wait_finished()).status == "completed"


OLD_FILE = Path(__file__).with_name("version_2.sql").read_text(encoding="utf-8")
VERSION_1 = "ALTER TABLE responses DROP COLUMN asked; PRAGMA user_version = 1;"


@pytest.mark.parametrize("downgrade", ["", VERSION_1], ids=["version 2", "version 1"])
async def test_a_file_of_an_older_version_is_migrated(path: Path, downgrade: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with sqlite3.connect(path) as line:
        line.executescript(OLD_FILE + downgrade)
    line.close()
    async with opened(path) as store:
        found = store.find_log("me", "resp_old")
        assert found is not None and found.response.status == "completed" and len(found.entries) == 10
        assert [item.id for item in found.input_items] == ["msg_old0000"]
        assert [item.id for item in store.conversation_items("me", "conv_1")] == ["msg_old0000", "msg_0"]
        store.request_cancel(found)
        await begun(store, "new", background=True).wait_finished()
    with sqlite3.connect(path) as line:
        assert line.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    line.close()


def _full(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


async def test_the_file_is_for_its_owner_only(path: Path) -> None:
    async with opened(path) as store:
        await begun(store, "a").wait_published()
        assert mode_of(path.parent) == 0o700
        names = {file.name: mode_of(file) for file in path.parent.iterdir()}
        assert len(names) == 3 and set(names.values()) == {0o600}, names
