"""The store on disk: what was shown is there after anything, and two processes agree on who writes."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.event_log import Log
from antiphon.app.store.database import VERSION, Disk, StoreError
from antiphon.app.store.sqlite import FileStore
from antiphon.app.store.writer import Times
from antiphon.app.turns.stored_history import identified
from antiphon.events.base import Event
from antiphon.events.inputs import HostedInput, InputMessage
from antiphon.events.response import Response
from antiphon.state.segments import Say
from tests.invariants import check
from tests.state.machine_helpers import machine, plain

QUICK = Times(beat=0.05, lease=0.4, sweep=0.05)
GIVEN = (InputMessage(role="user", content="hi"), HostedInput(kind="web_search_call", payload={"query": "x"}))


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[FileStore]:
    store = FileStore(path, **{"times": QUICK, **options})
    try:
        yield store
    finally:
        await store.close()


def head(name: str, *, background: bool = False, created: int = 2_000_000_000) -> Response:
    return Response(id=f"resp_{name}", created_at=created, model="m", background=background, metadata={"a": "b"})


def steps() -> list[list[Event]]:
    m = machine()
    return [m.begin(), m.feed(Say("a")), m.feed(Say("b")), m.stop()]


def begun(store: FileStore, name: str, count: int = 4, owner: str = "me", **more: Any) -> Log:
    """A log that has said so many of its four steps, kept from the first on."""
    first = head(name, **more)
    log = Log(first, owner, identified(GIVEN, first.id))
    for number, step in enumerate(steps()[:count]):
        log.append(step)
        if number == 0:
            store.put(log)
    if count == 4:
        log.end()
    return log


def data(log: Log) -> list[bytes]:
    return [frame.data for frame in log.frames]


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
        found = store.get("me", "resp_a")
        assert found is not None and found is not log and found.ended
        assert data(found) == data(log) and found.head == log.head and found.given == log.given
        assert found.response == log.frames[-1].event.response  # type: ignore[attr-defined]
        assert store.get("you", "resp_a") is None and store.get("me", "resp_b") is None
        assert store.get("me", "resp_a") is found, "the next reader need not read the file again"


async def test_a_background_step_is_shown_when_it_is_safe(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as store:
        log = begun(store, "a", count=2, background=True)
        assert log.shown == 0 and log.response.status == "in_progress"
        await log.settled()
        assert log.shown == len(log.frames)
        other = Disk(path)
        assert [frame.data for frame in other.frames("resp_a")] == data(log)
        log.append(steps()[2])
        assert log.shown < len(log.frames)
        await log.settled()
        assert len(other.frames("resp_a")) == len(log.frames)
        other.close()


async def test_of_any_other_only_the_end_waits_until_it_is_safe(path: Path) -> None:
    async with opened(path) as store:
        log = begun(store, "a", count=3)
        assert log.shown == len(log.frames)
        log.append(steps()[3])
        log.end()
        assert log.shown == len(log.frames) - len(steps()[3])
        assert (await log.finished()).status == "completed"


async def test_items_are_found_by_id_both_those_put_in_and_those_put_out(path: Path) -> None:
    async with opened(path) as store:
        log = begun(store, "a")
        await log.settled()
        for _ in range(2):
            for item in (*log.given, *log.response.output):
                assert store.item("me", item.id or "") == item
                assert store.item("you", item.id or "") is None
            store._recent.clear()
        assert store.item("me", "msg_none") is None


async def test_what_was_deleted_is_gone_at_once_and_for_good(path: Path) -> None:
    async with opened(path) as store:
        ended, running = begun(store, "a"), begun(store, "b", count=2, background=True)
        assert not store.delete("you", "resp_a")
        for log in (ended, running):
            assert store.delete("me", log.id) and store.get("me", log.id) is None and not store.delete("me", log.id)
        running.append(steps()[2])
        assert running.shown == len(running.frames), "whoever reads it reads on"
    with sqlite3.connect(path) as line:
        assert [
            line.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("responses", "events", "items")
        ] == [0, 0, 0]


async def test_a_second_process_reads_while_the_first_writes(path: Path) -> None:
    async with opened(path) as first, opened(path) as second:
        log = begun(first, "a", count=1, background=True)
        await log.settled()
        seen = second.get("me", "resp_a")
        assert seen is not None and not seen.ended and second.get("me", "resp_a") is seen
        reading = asyncio.create_task(seen.finished())
        for step in steps()[1:]:
            await asyncio.sleep(0.06)
            log.append(step)
        log.end()
        assert (await asyncio.wait_for(reading, 5)).status == "completed"
        assert data(seen) == data(log)
        assert not second._foreign or await settled(lambda: not second._foreign)


async def settled(fact: Any) -> bool:
    for _ in range(200):
        if fact():
            return True
        await asyncio.sleep(0.02)
    return False


async def test_what_a_dead_process_left_is_ended_as_failed_once_by_one_of_the_living(path: Path) -> None:
    async with opened(path) as one, opened(path) as two:
        for store in (one, two):
            store.alive = lambda name, _: "dead" not in name  # type: ignore[method-assign]
        disk = Disk(path)
        left = Log(head("a", background=True), "me")
        left.append([*machine().begin(), *steps()[1]])
        disk.begin(sync=True)
        disk.put(left, "dead")
        disk.say("me", left.id, left.frames, "dead")
        disk.commit()
        seen = two.get("me", "resp_a")
        assert seen is not None
        response = await asyncio.wait_for(seen.finished(), 5)
        assert response.status == "failed" and response.error and response.error.code == "server_restarted"
        check(plain([frame.event for frame in seen.frames]))
        assert data(seen)[: len(left.frames)] == data(left), "what was said stays"
        await asyncio.sleep(0.2)
        assert len(disk.frames("resp_a")) == len(seen.frames), "nobody ends it twice"
        disk.close()


async def test_the_living_are_left_alone_and_who_comes_back_late_is_told_so(path: Path) -> None:
    async with opened(path) as one:
        log = begun(one, "a", count=2, background=True)
        await log.settled()
        await asyncio.sleep(0.3)
        assert not log.ended and one._disk.writer("resp_a") == one.name
        one.alive = lambda *_: True  # type: ignore[method-assign]
        disk = Disk(path)
        disk.begin(sync=True)
        assert disk.take("resp_a", one.name, "other") and not disk.take("resp_a", one.name, "third")
        disk.commit()
        log.append(steps()[2])
        await asyncio.wait_for(log.settled(), 5)
        assert log.keeper is None, "it is kept here no more; its readers do not wait for ever"
        assert disk.writer("resp_a") == "other" and len(disk.frames("resp_a")) < len(log.frames)
        disk.close()


async def test_a_writer_lives_while_its_process_or_on_another_machine_its_heart_does(path: Path) -> None:
    now = time.time()
    async with opened(path) as store:
        mine = store.name.split(":")
        dead = ":".join([*mine[:2], str(int(mine[2]) + 1), "ab"])  # the same process id, begun at another time
        assert store.alive(store.name, 0.0) and not store.alive(dead, now)
        for name in ("elsewhere:1:2:ab", "of another version", ""):
            assert store.alive(name, now) and not store.alive(name, now - 60)


async def test_nothing_that_goes_wrong_ends_the_thread_that_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.store.writer.PATIENCE", 1)
    async with opened(path) as store:
        with monkeypatch.context() as broken:
            broken.setattr(Disk, "orphans", _broken)
            broken.setattr(Disk, "put", _broken)
            first = begun(store, "a", background=True)
            await asyncio.wait_for(first.finished(), 10)
            await asyncio.sleep(0.2)
        second = begun(store, "b", background=True)
        await asyncio.wait_for(second.finished(), 10)
        assert store._disk.load("me", "resp_b") is not None


def _broken(*_: object) -> None:
    raise ZeroDivisionError


async def test_what_is_old_or_too_much_goes_and_what_runs_stays(path: Path) -> None:
    async with opened(path, times=Times(beat=0.05, sweep=0.05, age=1e9)) as store:
        begun(store, "old", created=5)
        begun(store, "running", count=2, created=6)
        await begun(store, "new").settled()
        assert await settled(lambda: store._disk.load("me", "resp_old") is None)
        assert store._disk.load("me", "resp_running") and store._disk.load("me", "resp_new")
    async with opened(path, times=Times(beat=0.05, sweep=0.05, age=1e10), most=1) as store:
        assert await settled(lambda: store._disk.load("me", "resp_new") is None)


async def test_a_damaged_file_is_put_aside(path: Path) -> None:
    async with opened(path) as store:
        begun(store, "a")
    size = damage(path)
    async with opened(path) as store:
        assert store.get("me", "resp_a") is None
        begun(store, "b")
    (aside,) = path.parent.glob("responses.db.damaged-*")
    assert size_of(aside) == size


async def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    async with opened(path):
        pass
    with sqlite3.connect(path) as line:
        line.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(StoreError, match="newer Antiphon"):
        FileStore(path)


async def test_a_store_that_cannot_be_written_holds_nobody_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.store.writer.PATIENCE", 2)
    async with opened(path) as store:
        monkeypatch.setattr(Disk, "say", _full)
        log = begun(store, "a", background=True)
        assert (await asyncio.wait_for(log.finished(), 10)).status == "completed"
        assert store.get("me", "resp_a") is log and log.ended, "it is found as long as this process lives"


async def test_while_nothing_can_be_written_nothing_is_promised_and_it_passes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.app.store.writer.PATIENCE", 1)
    async with opened(path) as store:
        assert store.obstacle() is None
        with monkeypatch.context() as broken:
            broken.setattr(Disk, "begin", _full)
            await asyncio.wait_for(begun(store, "a", background=True).finished(), 10)
            assert store.obstacle() == "The store cannot be written."
        for _ in range(100):
            await asyncio.sleep(0.05)
            if store.obstacle() is None:
                break
        assert store.obstacle() is None, "the next heartbeat finds it well"
        log = begun(store, "b", background=True)
        assert (await log.finished()).status == "completed"


async def test_a_file_of_the_version_before_is_brought_up_to_date(path: Path) -> None:
    async with opened(path) as store:
        await begun(store, "a", background=True).finished()
    with sqlite3.connect(path) as line:
        line.execute("ALTER TABLE responses DROP COLUMN asked")
        line.execute("PRAGMA user_version = 1")
    line.close()
    async with opened(path) as store:
        found = store.get("me", "resp_a")
        assert found is not None and found.response.status == "completed"
        store.end(found)
    with sqlite3.connect(path) as line:
        assert line.execute("PRAGMA user_version").fetchone() == (2,)
    line.close()


def _full(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


async def test_the_file_is_for_its_owner_only(path: Path) -> None:
    async with opened(path) as store:
        await begun(store, "a").settled()
        assert mode_of(path.parent) == 0o700
        names = {file.name: mode_of(file) for file in path.parent.iterdir()}
        assert len(names) == 3 and set(names.values()) == {0o600}, names
