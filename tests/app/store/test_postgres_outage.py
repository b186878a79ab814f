"""A database that stops, crashes or freezes: clients get 503, and nothing that was shown is lost, changed or doubled.

Each test has a database server of its own.
"""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.store.base import StoredConversation
from antiphon.app.store.postgres.connection import STATEMENT_READ_TIMEOUT_S, PostgresConnection
from antiphon.app.store.writing.write_ops import StoreChange, StoreTimings
from antiphon.app.turn_types.event_log import EventLog
from antiphon.events.inputs import InputMessage
from tests.app.store.store_helpers import PostgresPlace, add_log, make_steps
from tests.clients.sdk_helpers import wait_until
from tests.conftest import StartServer
from tests.postgres_server import PASSWORD, PostgresServer, run_postgres
from tests.progress import HANG_TIMEOUT_S

pytestmark = pytest.mark.processes

QUIET = StoreTimings(heartbeat_s=3600, lease_s=3600)
"""Without heartbeats, whose commits would come between those of a test."""
ITEM = InputMessage(role="user", content="hi", id="msg_1")
CONVERSATION = StoredConversation(id="conv_1", created_at=1)


@pytest.fixture
def database_server() -> Iterator[PostgresServer]:
    with run_postgres() as server:
        yield server


@pytest.fixture
def own_place(database_server: PostgresServer) -> PostgresPlace:
    return PostgresPlace(database_server.create_database())


def stored_data(place: PostgresPlace, response_id: str) -> list[bytes]:
    database: Any = place.open_database()
    try:
        return [entry.data for entry in database.load_entries(response_id)]
    finally:
        database.close()


def log_data(log: EventLog) -> list[bytes]:
    return [entry.data for entry in log.entries]


async def finish_log(log: EventLog, first_step: int) -> None:
    for step in make_steps()[first_step:]:
        log.append_step(step)
    log.end_log()
    await asyncio.wait_for(log.wait_published(), HANG_TIMEOUT_S)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGQUIT], ids=["stop", "crash"])
async def test_streams_continue_after_a_restart_of_the_database(
    database_server: PostgresServer,
    own_place: PostgresPlace,
    signal_number: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.app.store.writing.outage.MAX_LAST_STEP_WAIT_S", 0.5)
    async with own_place.open() as store, own_place.open() as other:
        logs = {name: add_log(store, name, count=2, background=name == "background") for name in ("background", "open")}
        for log in logs.values():
            await log.wait_published()
        followed = await other.read_log("me", "resp_background")
        assert followed is not None
        shown = log_data(followed)
        database_server.stop(signal_number)
        for log in logs.values():
            log.append_step(make_steps()[2])
        await asyncio.sleep(1.5)
        assert store.unavailable_reason() is not None
        assert logs["background"].published < len(logs["background"].entries), "nothing is shown before it is stored"
        assert logs["open"].published == len(logs["open"].entries), "a response in the foreground continues"
        with pytest.raises(ApiError) as refusal:
            await store.create_conversation("me", CONVERSATION)
        assert (refusal.value.status, dict(refusal.value.headers)) == (503, {"retry-after": "1"})
        with pytest.raises(ApiError):
            await store.read_log("me", "resp_none")
        database_server.start()
        for log in logs.values():
            await finish_log(log, 3)
        assert (await asyncio.wait_for(followed.wait_finished(), HANG_TIMEOUT_S)).status == "completed"
        assert log_data(followed)[: len(shown)] == shown and log_data(followed) == log_data(logs["background"])
        for log in logs.values():
            assert stored_data(own_place, log.id) == log_data(log)
        assert store.unavailable_reason() is None and await store.read_log("me", "resp_none") is None
        await store.create_conversation("me", CONVERSATION)
    output = "".join(capfd.readouterr())
    assert PASSWORD not in output and "ss/w" not in output and "w%25rd" not in output


async def test_step_is_not_kept_before_the_database_is_back(
    database_server: PostgresServer, own_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.app.store.writing.outage.MAX_LAST_STEP_WAIT_S", 0.5)
    async with own_place.open() as store:
        log = add_log(store, "a", count=2)
        assert await log.wait_kept()
        database_server.stop()
        log.append_step(make_steps()[2])
        waiting = asyncio.create_task(log.wait_kept())
        await asyncio.sleep(1.5)
        assert log.published == len(log.entries) and not waiting.done()
        database_server.start()
        assert await asyncio.wait_for(waiting, HANG_TIMEOUT_S)
        assert stored_data(own_place, log.id) == log_data(log)
        await finish_log(log, 3)


async def test_crash_of_the_database_loses_no_step(database_server: PostgresServer, own_place: PostgresPlace) -> None:
    """Without a sync of each commit, this database would not write for ten seconds."""
    with psycopg.connect(database_server.url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        connection.execute("SELECT pg_reload_conf()")
    async with own_place.open(timings=QUIET) as store:
        await store.create_conversation("me", CONVERSATION)
        log = add_log(store, "a", count=1)
        while not stored_data(own_place, log.id):
            await asyncio.sleep(0.01)
        for step in make_steps()[1:3]:
            log.append_step(step)
            while len(stored_data(own_place, log.id)) < len(log.entries):
                await asyncio.sleep(0.01)
        database_server.stop(signal.SIGQUIT)
        database_server.start()
        assert len(stored_data(own_place, log.id)) == len(log.entries)
        await finish_log(log, 3)
        assert stored_data(own_place, log.id) == log_data(log)
    async with own_place.open() as store:
        found = await store.read_log("me", log.id)
        assert found is not None and found.response.status == "completed" and log_data(found) == log_data(log)


@pytest.mark.parametrize("is_committed", [True, False])
async def test_change_is_made_once_when_its_commit_is_interrupted(
    own_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    run_script = PostgresConnection.run_script
    interruptions = 1

    def interrupt(connection: PostgresConnection, script: str) -> None:
        nonlocal interruptions
        if interruptions and script.endswith("COMMIT"):
            interruptions -= 1
            if is_committed:
                run_script(connection, script)
            connection.session.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        run_script(connection, script)

    async with own_place.open(timings=QUIET) as store:
        await store.create_conversation("me", CONVERSATION)
        log = add_log(store, "a", count=2, background=True)
        await log.wait_published()
        monkeypatch.setattr(PostgresConnection, "run_script", interrupt)
        using = store.use_approvals("me", ["0" * 32])
        is_used, *_ = await asyncio.gather(using, store.add_items("me", "conv_1", [ITEM]), finish_log(log, 2))
        assert is_used and not await store.use_approvals("me", ["0" * 32])
        assert store.history.load_conversation("me", "conv_1") == (ITEM,)
        assert stored_data(own_place, log.id) == log_data(log)
        assert not interruptions


async def test_lost_connections_are_opened_again_without_an_error(own_place: PostgresPlace) -> None:
    async with own_place.open(timings=QUIET) as store, own_place.open(timings=QUIET) as other:
        log = add_log(store, "a", count=2, background=True)
        await log.wait_published()
        followed = await other.read_log("me", log.id)
        assert followed is not None
        for step in (2, 3):
            others = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
            own_place.read_rows(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
            assert await store.read_log("me", "resp_none") is None
            log.append_step(make_steps()[step])
            await asyncio.wait_for(log.wait_published(), HANG_TIMEOUT_S)
        log.end_log()
        assert (await asyncio.wait_for(followed.wait_finished(), HANG_TIMEOUT_S)).status == "completed"
        assert log_data(followed) == log_data(log) == stored_data(own_place, log.id)


def list_backends(place: PostgresPlace) -> list[int]:
    """Returns the processes of the database server that serve the store's connections."""
    condition = "datname = current_database() AND pid <> pg_backend_pid()"
    return [pid for (pid,) in place.read_rows(f"SELECT pid FROM pg_stat_activity WHERE {condition}")]


async def test_server_exits_though_the_database_is_frozen(
    database_server: PostgresServer, own_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.app.store.writing.writer.MAX_STUCK_S", 0.5)
    monkeypatch.setattr("antiphon.app.store.postgres.follower.MAX_CLOSE_WAIT_S", 0.5)
    async with own_place.open() as store:
        add_log(store, "a", count=2)
        pids = list_backends(own_place)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.3)
        began = time.monotonic()
    try:
        assert time.monotonic() - began < 10
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


TABLES = "responses, events, items, conversations, conversation_items, chat_completions, chat_choices, writers"


@contextmanager
def locked_tables(place: PostgresPlace) -> Iterator[None]:
    """No statement on a table is answered."""
    with psycopg.connect(place.url) as connection:
        connection.execute(f"LOCK TABLE {TABLES} IN ACCESS EXCLUSIVE MODE")
        yield


@contextmanager
def frozen_backends(place: PostgresPlace) -> Iterator[None]:
    """No connection that exists now is answered."""
    pids = list_backends(place)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("silence", [locked_tables, frozen_backends])
def test_clients_get_answers_while_the_database_does_not_answer(
    silence: Callable[[PostgresPlace], AbstractContextManager[None]],
    postgres_place: PostgresPlace,
    start_server: StartServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statement_limit = "postgres.connection.STATEMENT_READ_TIMEOUT_S"
    for limit in ("writing.write_ops.MAX_CHANGE_WAIT_S", "writing.outage.MAX_LAST_STEP_WAIT_S", statement_limit):
        monkeypatch.setattr(f"antiphon.app.store.{limit}", 0.5)
    monkeypatch.setattr("antiphon.app.turns.turn_groups.MAX_FIRST_STEP_WAIT_S", 0.5)
    place = postgres_place
    server = start_server(
        [{"name": "hello", "output": ["Hello."]}], **place.settings(), encryption_key_file=tmp_path / "key"
    )
    body = {"model": "scripted", "input": "Hi"}
    with httpx.Client(base_url=f"{server.url}/", timeout=HANG_TIMEOUT_S) as client:
        made = client.post("responses", json=body).json()
        with silence(place):
            for reply in (
                client.post("responses", json=body),
                client.post("responses", json={**body, "background": True}),
                client.delete(f"responses/{made['id']}"),
                client.post("conversations", json={}),
                client.get("conversations/conv_none"),
                client.post("responses", json={**body, "previous_response_id": "resp_none"}),
            ):
                assert (reply.status_code, reply.headers.get("retry-after")) == (503, "1"), reply.text
            assert client.post("responses", json={**body, "store": False}).json()["status"] == "completed"
        assert wait_until(60, lambda: server.context.store.unavailable_reason() is None)
        # A read that began in the outage may still wait for its answer.
        assert wait_until(60, lambda: client.get("conversations/conv_none").status_code == 404)
        assert client.get(f"responses/{made['id']}").json() == made, "a deletion that got a 503 was not made"
        assert client.delete(f"responses/{made['id']}").json()["deleted"]
        assert client.post("conversations", json={}).status_code == 200
    assert place.read_rows("SELECT count(*) FROM conversations") == [(1,)]


def test_reads_of_a_database_that_does_not_answer_leave_the_event_loop_free(
    postgres_place: PostgresPlace, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(
        [{"name": "hello", "output": ["Hello."]}], **postgres_place.settings(), encryption_key_file=tmp_path / "key"
    )
    requests = [
        ("GET", f"responses/resp_{'0' * 48}", None),
        ("GET", "conversations/conv_none", None),
        ("GET", "chat/completions", None),
        ("POST", "responses", {"model": "scripted", "input": "Hi", "previous_response_id": "resp_none"}),
        ("POST", "responses", {"model": "scripted", "input": [{"type": "item_reference", "id": "msg_1"}]}),
    ]
    order: list[str] = []

    def ask(method: str, path: str, body: Any) -> None:
        order.append(str(httpx.request(method, f"{server.url}/{path}", json=body, timeout=HANG_TIMEOUT_S).status_code))

    threads = [threading.Thread(target=ask, args=request) for request in requests]
    with locked_tables(postgres_place):
        for thread in threads:
            thread.start()
        assert wait_until(30, lambda: server.context.store._bounded._probe is not None)  # type: ignore[attr-defined]
        assert httpx.get(f"{server.root}/health", timeout=HANG_TIMEOUT_S).status_code == 200
        order.append("health")
        for thread in threads:
            thread.join()
    assert order == ["health", *["503"] * len(requests)]


async def test_change_is_given_up_unless_its_transaction_is_being_committed() -> None:
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("antiphon.app.store.writing.write_ops.MAX_CHANGE_WAIT_S", 0.0)
        queued, committing = (StoreChange(lambda _: True, loop.create_future()) for _ in range(2))
        assert committing.begin_commit()
        with pytest.raises(ApiError, match="Nothing was changed"):
            await queued.wait_done()
        with pytest.raises(ApiError, match="did not say whether"):
            await committing.wait_done()
    assert not queued.begin_commit() and queued.is_given_up and not committing.is_given_up
    committing.apply(None)  # type: ignore[arg-type]
    committing.succeed()
    assert await committing.wait_done() is True
    queued.succeed()
    with pytest.raises(ApiError):
        await queued.wait_done()


async def test_full_disk_is_reported_once_per_try_and_ends_with_it(
    own_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database can be reached, and refuses writes: the writer waits between two tries."""
    monkeypatch.setattr("antiphon.app.store.writing.outage.MAX_LAST_STEP_WAIT_S", 0.5)
    monkeypatch.setattr("antiphon.app.store.writing.writer.MAX_RECONNECT_DELAY_S", 0.2)
    monkeypatch.setattr("antiphon.app.store.writing.write_ops.MAX_CHANGE_WAIT_S", 0.5)
    run_script, tries = PostgresConnection.run_script, list[float]()
    is_full = True

    def refuse(connection: PostgresConnection, script: str) -> None:
        if is_full and script.endswith("COMMIT"):
            tries.append(time.monotonic())
            raise psycopg.errors.DiskFull("could not extend file: No space left on device")
        run_script(connection, script)

    async with own_place.open(timings=QUIET) as store:
        monkeypatch.setattr(PostgresConnection, "run_script", refuse)
        log = add_log(store, "a")
        await asyncio.wait_for(log.wait_published(), 60)
        with pytest.raises(ApiError, match="not writable"):
            await store.create_conversation("me", CONVERSATION)
        assert min(after - before for before, after in pairwise(tries)) >= 0.1
        is_full = False
        await asyncio.wait_for(store.create_conversation("me", CONVERSATION), 60)
        assert stored_data(own_place, log.id) == log_data(log)


async def test_frozen_database_is_waited_for_once(database_server: PostgresServer, own_place: PostgresPlace) -> None:
    async with own_place.open() as store:
        assert await store.read_log("me", "resp_a") is None
        pids = list_backends(own_place)
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            waits = []
            for _ in range(3):
                began = time.monotonic()
                with pytest.raises(ApiError):
                    await store.read_log("me", "resp_a")
                waits.append(time.monotonic() - began)
            assert waits[0] >= STATEMENT_READ_TIMEOUT_S > max(waits[1:]), "later reads do not wait"
            monotonic_limit = time.monotonic() + HANG_TIMEOUT_S
            while store.unavailable_reason() is None:
                assert time.monotonic() < monotonic_limit
                await asyncio.sleep(0.1)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        for _ in range(100):
            if store.unavailable_reason() is None:
                break
            await asyncio.sleep(0.1)
        assert store.unavailable_reason() is None and await store.read_log("me", "resp_a") is None


async def test_other_writers_are_not_declared_dead_because_of_an_outage(
    database_server: PostgresServer, own_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage longer than the lease, the first server that is back must spare the others."""
    timings = StoreTimings(heartbeat_s=0.05, lease_s=3.0)
    async with own_place.open(timings=timings) as store:
        log = add_log(store, "a", count=2, background=True)
        await log.wait_published()
        async with own_place.open(timings=timings) as other:
            # As on another machine: the process id does not tell whether it is alive.
            monkeypatch.setattr("antiphon.app.store.writing.writer_lease._machine_id", lambda: "elsewhere")
            database_server.stop()
            reopen = PostgresConnection.reopen
            held = {"store"}

            def reopen_later(connection: PostgresConnection) -> None:
                if connection is store._written._session and held:  # type: ignore[attr-defined]
                    raise psycopg.OperationalError("not yet")
                reopen(connection)

            monkeypatch.setattr(PostgresConnection, "reopen", reopen_later)
            await asyncio.sleep(3.5)
            database_server.start()
            while other.unavailable_reason() is not None:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.2)  # several of its heartbeats, less than a lease
            held.clear()
            await finish_log(log, 2)
            assert stored_data(own_place, log.id) == log_data(log)


def test_clients_get_503_with_retry_after_while_the_database_is_gone(
    database_server: PostgresServer,
    own_place: PostgresPlace,
    start_server: StartServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A response that has begun before the outage is noticed is answered, too, and stored afterwards."""
    monkeypatch.setattr("antiphon.app.store.writing.outage.MAX_LAST_STEP_WAIT_S", 0.5)
    script = [{"name": f"hello {number}", "output": ["Hello."]} for number in range(4)]
    server = start_server(script, **own_place.settings(), encryption_key_file=tmp_path / "key")
    body = {"model": "scripted", "input": "Hi"}
    with httpx.Client(base_url=f"{server.url}/", timeout=HANG_TIMEOUT_S) as client:
        made = client.post("responses", json=body).json()
        database_server.stop()
        begun = client.post("responses", json=body)
        assert begun.status_code in (200, 503)
        deadline = time.monotonic() + HANG_TIMEOUT_S
        while (refused := client.post("responses", json=body)).status_code != 503:
            assert time.monotonic() < deadline
        assert refused.json()["error"]["code"] == "storage_unavailable" and refused.headers["retry-after"]
        for path in ("conversations/conv_none", "responses/resp_" + "0" * 48):
            reply = client.get(path)
            assert (reply.status_code, reply.headers.get("retry-after")) == (503, "1"), reply.text
        assert client.post("responses", json={**body, "store": False}).status_code == 200
        database_server.start()
        while (reply := client.post("responses", json=body)).status_code == 503:
            assert time.monotonic() < deadline + 30
            time.sleep(0.1)
        assert reply.status_code == 200
        for response in (made, begun.json())[: 1 + (begun.status_code == 200)]:
            assert client.get(f"responses/{response['id']}").json() == response
            (last,) = stored_data(own_place, response["id"])[-1:]
            assert json.loads(last)["response"]["output"] == response["output"]
