"""What PostgreSQL adds: creation of the tables by several servers at once, one encryption key, notifications, and any item id."""

import asyncio
import fcntl
import gc
import os
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.options.settings import Settings
from antiphon.app.store.base import StoreError
from antiphon.app.store.factory import open_store
from antiphon.app.store.postgres.address import parse_address
from antiphon.app.store.postgres.connection import BoundedConnection
from antiphon.app.store.postgres.database import STEPS_CHANNEL, PostgresDatabase
from antiphon.app.store.postgres.follower import Follower, _wait_readable
from antiphon.app.store.postgres.schema import create_tables
from antiphon.app.store.tables import SCHEMA_VERSION
from antiphon.app.store.writing.writer_lease import NAME, create_name
from tests.app.server_helpers import wait_until
from tests.app.store.store_helpers import PostgresPlace, StorePlace, add_log, make_response, make_steps
from tests.progress import HANG_TIMEOUT_S


def test_several_servers_create_the_tables_at_once(postgres_place: PostgresPlace) -> None:
    from concurrent.futures import ThreadPoolExecutor

    address = parse_address(postgres_place.url)
    with ThreadPoolExecutor(max_workers=8) as pool:
        for done in [pool.submit(create_tables, address) for _ in range(8)]:
            done.result()
    assert postgres_place.read_rows("SELECT version FROM antiphon_schema") == [(SCHEMA_VERSION,)]


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, SCHEMA_VERSION + 8])
async def test_database_of_another_version_is_refused(postgres_place: PostgresPlace, version: int) -> None:
    async with postgres_place.open():
        pass
    postgres_place.read_rows(f"UPDATE antiphon_schema SET version = {version}")
    message = (
        f"it has schema version {version}, .* version {SCHEMA_VERSION} only. .* or give this one an empty database"
    )
    with pytest.raises(StoreError, match=message):
        create_tables(parse_address(postgres_place.url))


async def test_database_that_lacks_a_column_is_refused(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open():
        pass
    postgres_place.read_rows("ALTER TABLE writers DROP COLUMN stats")
    with pytest.raises(StoreError, match=r"missing columns: writers\.stats"):
        create_tables(parse_address(postgres_place.url))


def test_database_with_tables_of_another_program_is_refused(postgres_place: PostgresPlace) -> None:
    postgres_place.read_rows("CREATE TABLE events (id INTEGER)")
    with pytest.raises(StoreError, match="a table events of another program") as refusal:
        create_tables(parse_address(postgres_place.url))
    assert "ss/w" not in str(refusal.value) and "antiphon:" not in str(refusal.value)


async def test_server_with_another_encryption_key_is_refused_while_others_run(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(encryption_key="one"):
        async with postgres_place.open(encryption_key="one"):
            pass
        with pytest.raises(StoreError, match="another encryption key"):
            async with postgres_place.open(encryption_key="two"):
                pass
    async with postgres_place.open(encryption_key="two"):
        pass
    assert postgres_place.read_rows("SELECT name FROM writers") == []


async def test_store_is_opened_with_the_key_of_the_settings(postgres_place: PostgresPlace, tmp_path: Any) -> None:
    def settings(name: str) -> Settings:
        return Settings(store_url=postgres_place.url, encryption_key_file=tmp_path / name)

    first, second = open_store(settings("key")), open_store(settings("key"))
    try:
        with pytest.raises(StoreError, match="another encryption key"):
            open_store(settings("other"))
    finally:
        await first.close()
        await second.close()


async def test_store_that_cannot_be_opened_leaves_no_connection(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open():
        pass
    name = postgres_place.url.rpartition("/")[2]
    postgres_place.read_rows(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(StoreError, match="read-only transaction"):
        async with postgres_place.open():
            pass
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert wait_until(HANG_TIMEOUT_S, lambda: postgres_place.read_rows(others) == [(0,)])


def test_missing_driver_is_an_error_with_a_remedy(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "antiphon.app.store.postgres.store", None)
    with pytest.raises(StoreError, match=r"pip install 'antiphon\[postgres\]'"):
        open_store(Settings(store_url=postgres_place.url))


async def test_ids_of_items_may_be_long_and_have_any_character(place: StorePlace) -> None:
    from antiphon.app.turn_types.event_log import EventLog
    from antiphon.events.inputs import InputMessage

    ids = ["x" * 10_000, "nul\0", "ü€😀", "'; DROP TABLE items; --", "%s ? \\"]
    messages = tuple(InputMessage(role="user", content=str(number), id=id_) for number, id_ in enumerate(ids))
    async with place.open() as store:
        log = EventLog(make_response("a"), "me", messages)
        log.append_step(make_steps()[0])
        store.add_log(log)
        for step in make_steps()[1:]:
            log.append_step(step)
        log.end_log()
        await log.wait_published()
    async with place.open() as store:
        assert store.unavailable_reason() is None
        for number, id_ in enumerate(ids):
            found = store.history.item_finder("me")(id_)
            assert isinstance(found, InputMessage) and found.content == str(number), id_[:20]


async def test_every_step_is_committed_with_a_sync(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers may be at any server, so the step that they saw must not be lost in a crash of the database."""
    levels: dict[str, list[bool]] = {"resp_background": [], "resp_open": []}
    append_steps = PostgresDatabase.append_steps

    def record_level(database: PostgresDatabase, steps: Any, writer: str) -> set[str]:
        for step in steps:
            levels[step.response_id].append(postgres_place.is_synced(database))
        return append_steps(database, steps, writer)

    monkeypatch.setattr(PostgresDatabase, "append_steps", record_level)
    async with postgres_place.open() as store:
        for name in ("background", "open"):
            log = add_log(store, name, count=1, background=name == "background")
            for step in make_steps()[1:]:
                await asyncio.sleep(0.1)
                log.append_step(step)
            log.end_log()
            await log.wait_published()
    assert levels == {"resp_background": [True] * 4, "resp_open": [True] * 4}


# Notifications


@contextmanager
def listening(place: PostgresPlace) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute(f"LISTEN {STEPS_CHANNEL}")
        yield connection


async def run_steps(store: Any, name: str, pause_s: float = 0.05) -> Any:
    log = add_log(store, name, count=1, background=True)
    await log.wait_published()
    for step in make_steps()[1:]:
        await asyncio.sleep(pause_s)
        log.append_step(step)
    log.end_log()
    await log.wait_published()
    return log


async def test_only_responses_that_another_server_reads_are_told_of(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open() as first, postgres_place.open() as second:
        with listening(postgres_place) as connection:
            await run_steps(first, "unread")
            running = asyncio.create_task(run_steps(first, "read", pause_s=0.4))
            while await second.read_log("me", "resp_read") is None:
                await asyncio.sleep(0.02)
            log = await running
            payloads = [found.payload for found in connection.notifies(timeout=0.5)]
            assert payloads and all(payload.startswith("resp_read:") for payload in payloads)
            assert payloads[-1] == f"resp_read:{len(log.entries)}"
            assert len(payloads) <= 1 + len(make_steps())


async def test_readers_of_many_responses_are_told_in_one_short_notification(postgres_place: PostgresPlace) -> None:
    database: Any = postgres_place.open_database()
    async with postgres_place.open() as store:
        logs = [add_log(store, f"{'x' * 90}{number}", count=1, background=True) for number in range(120)]
        await asyncio.gather(*(log.wait_published() for log in logs))
        with listening(postgres_place) as connection:
            store._written.wanted.update(log.id for log in logs)  # type: ignore[attr-defined]
            payloads: list[str] = []
            for step in make_steps()[1:4]:  # a busy machine may spread the steps over several commits
                for log in logs:
                    log.append_step(step)
                await asyncio.gather(*(log.wait_published() for log in logs))
                payloads += [found.payload for found in connection.notifies(timeout=0.5)]
            assert "*" in payloads
    database.close()


async def test_reader_is_told_within_a_fraction_of_the_polling_interval(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.app.store.postgres.follower.FOLLOW_POLL_INTERVAL_S", 3600)
    async with postgres_place.open() as first, postgres_place.open() as second:
        await check_reading(first, second)


async def test_reader_that_gets_no_notifications_polls(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind PgBouncer in transaction mode."""
    monkeypatch.setattr(Follower, "_take_notifications", lambda *_: [])
    async with postgres_place.open() as first, postgres_place.open() as second:
        await check_reading(first, second)


async def check_reading(first: Any, second: Any) -> None:
    log = add_log(first, "a", count=1, background=True)
    await log.wait_published()
    found = await second.read_log("me", "resp_a")
    for step in make_steps()[1:]:
        await asyncio.sleep(0.2)
        log.append_step(step)
    log.end_log()
    assert (await asyncio.wait_for(found.wait_finished(), HANG_TIMEOUT_S)).status == "completed"
    assert [entry.data for entry in found.entries] == [entry.data for entry in log.entries]


async def test_cancellation_is_told_at_once(postgres_place: PostgresPlace) -> None:
    from antiphon.app.store.writing.write_ops import StoreTimings

    timings = StoreTimings(heartbeat_s=3600)
    async with postgres_place.open(timings=timings) as first, postgres_place.open(timings=timings) as second:
        cancelled: asyncio.Queue[str] = asyncio.Queue()
        first.on_cancel_request(cancelled.put_nowait)
        await add_log(first, "a", count=2, background=True).wait_published()
        found = await second.read_log("me", "resp_a")
        assert found is not None
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while cancelled.empty():  # again: the first server may not listen yet, and its heartbeat is an hour away
                await second.request_cancel(found)
                await asyncio.sleep(0.05)
        assert cancelled.get_nowait() == "resp_a"


async def test_process_of_another_container_is_judged_by_its_heartbeat(postgres_place: PostgresPlace) -> None:
    """Its process id belongs to another namespace, although the boot id of the machine is the same."""
    found = NAME.fullmatch(create_name())
    assert found is not None
    boot_id, _, namespace = found["machine"].rpartition(".")
    assert boot_id and namespace.isdecimal()
    elsewhere = f"{boot_id}.{int(namespace) + 1}:4000000:1:ab"
    here = f"{found['machine']}:4000000:1:ab"
    async with postgres_place.open() as store:
        assert store.servers.is_alive(elsewhere, 1.0) and not store.servers.is_alive(here, 1.0)


async def test_failed_probe_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bounded = object.__new__(BoundedConnection)
    bounded._overdue, bounded._probe = None, Future()
    bounded._probe.set_running_or_notify_cancel()
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    waiting = asyncio.create_task(bounded.wait_readable())
    await asyncio.sleep(0)
    bounded._probe.set_exception(psycopg.OperationalError("gone"))
    with pytest.raises(ApiError) as caught:
        await waiting
    assert caught.value.status == 503
    gc.collect()
    assert unhandled == []


def test_descriptors_above_1023_are_waited_for() -> None:
    reader, writer = os.pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(soft, 2048 if hard == resource.RLIM_INFINITY else min(hard, 2048)), hard)
    )
    try:
        high = fcntl.fcntl(reader, fcntl.F_DUPFD, 1024)
        try:
            os.write(writer, b"x")
            _wait_readable((high,), HANG_TIMEOUT_S)
            assert os.read(high, 1) == b"x"
        finally:
            os.close(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(reader)
        os.close(writer)
