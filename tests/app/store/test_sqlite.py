"""The SQLite store: durability before publication, recovery, and the writer lease between two processes."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.store.base import StoreError
from antiphon.app.store.database import Database
from antiphon.app.store.history.step_rows import NewStep
from antiphon.app.store.sqlite import schema
from antiphon.app.store.sqlite.database import SqliteDatabase
from antiphon.app.store.sqlite.schema import list_statements, open_connection, open_existing
from antiphon.app.store.sqlite.store import SqliteStore
from antiphon.app.store.tables import SCHEMA_VERSION
from antiphon.app.store.writing.writer import StoreWriter
from antiphon.app.turn_types.event_log import EventLog
from antiphon.events.inputs import InputMessage
from tests.app.store.store_helpers import add_log, make_response, make_steps, open_test_store
from tests.counts import FULL_COUNTS
from tests.progress import HANG_TIMEOUT_S

SYNCHRONOUS_FULL = 2
"""Value of `PRAGMA synchronous` with which SQLite syncs the file at every commit."""


def damage_file(file: Path) -> int:
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    return len(content)


def file_size(file: Path) -> int:
    return file.stat().st_size


def file_mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "responses.db"


async def test_damaged_file_is_renamed_and_replaced(path: Path) -> None:
    async with open_test_store(path) as store:
        add_log(store, "a")
    size = damage_file(path)
    async with open_test_store(path) as store:
        assert await store.read_log("me", "resp_a") is None
        add_log(store, "b")
    (damaged,) = path.parent.glob("responses.db.damaged-*")
    assert file_size(damaged) == size


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, SCHEMA_VERSION + 11])
async def test_file_of_another_version_is_refused_and_kept(path: Path, version: int) -> None:
    async with open_test_store(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    message = f"{path}: it has schema version {version}, .* version {SCHEMA_VERSION} only. Use the Antiphon that wrote"
    with pytest.raises(StoreError, match=message):
        SqliteStore(path)
    with pytest.raises(StoreError, match=f"schema version {version}, .* or move it away"):
        open_existing(path)
    assert [file.name for file in list_folder(path.parent)] == ["responses.db"]


async def test_file_that_lacks_a_column_is_refused(path: Path) -> None:
    """As one that a build before the first version with this number has written."""
    async with open_test_store(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE writers DROP COLUMN stats")
    with pytest.raises(
        StoreError, match=r"missing columns: writers\.stats\)\. Use the Antiphon that wrote it, or move"
    ):
        SqliteStore(path)


@pytest.mark.parametrize("number", range(0, len(list_statements()), 1 if FULL_COUNTS else 8))
async def test_creation_that_the_disk_interrupts_changes_nothing(path: Path, number: int) -> None:
    """It fails at the statement with this number, as on a full disk."""
    with pytest.MonkeyPatch.context() as patched:
        connection_class = failing_connection(list_statements()[number])
        patched.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=connection_class))
        with pytest.raises(StoreError, match=r"cannot open the store .*: database or disk is full"):
            SqliteStore(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    async with open_test_store(path) as store:
        await add_log(store, "new").wait_published()
    assert [file.name for file in list_folder(path.parent)] == ["responses.db"]


def failing_connection(statement: str) -> type[sqlite3.Connection]:
    """Returns a class of connections that cannot run one statement on a file."""

    class FailingConnection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == statement and super().execute("PRAGMA database_list").fetchone()[2]:
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            return super().execute(sql, *values)

    return FailingConnection


async def test_transaction_of_many_streams_has_few_statements(path: Path) -> None:
    """Between two statements the thread waits for the global lock, which a busy event loop holds for 5 ms."""
    statements: list[str] = []
    path.parent.mkdir(exist_ok=True)
    connection = open_connection(path)
    database = SqliteDatabase(connection)
    logs = [EventLog(make_response(f"r{number}"), "me", (item(number),)) for number in range(300)]
    for log in logs:
        for step in make_steps():
            log.append_step(step)
    connection.set_trace_callback(statements.append)
    database.begin(sync=True)
    database.insert_responses(logs, "writer")
    steps = [NewStep("me", log.id, log.entries) for log in logs]
    assert database.append_steps([*steps, NewStep("me", "resp_none", logs[0].entries)], "writer") == {"resp_none"}
    database.commit()
    connection.set_trace_callback(None)
    assert len(statements) < 80
    for log in logs:
        found = database.find_log("me", log.id)
        assert found is not None and [entry.data for entry in found[0].entries] == [entry.data for entry in log.entries]
        assert found[1] is None and found[0].input_items == log.input_items
        assert log.id in database.turns.find_holders("me", log.input_items[0].id or "")
    assert database.append_steps(steps[:1], "another") == {logs[0].id}
    database.close()


def item(number: int) -> InputMessage:
    return InputMessage(role="user", content="hi", id=f"msg_{number}")


def list_folder(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_store_that_cannot_be_opened_closes_its_connections(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Database] = []
    close = SqliteDatabase.close

    def refuse(_: StoreWriter) -> None:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(StoreWriter, "_heartbeat", refuse)
    monkeypatch.setattr(SqliteDatabase, "close", lambda database: (closed.append(database), close(database)))
    with pytest.raises(sqlite3.OperationalError):
        SqliteStore(path)
    assert len(closed) == 3


def test_store_waits_until_another_server_has_created_the_file(path: Path) -> None:
    """SQLite itself does not wait for this lock when it changes the journal mode."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN IMMEDIATE")
        opened = pool.submit(open_connection, path)
        assert not wait([opened], timeout=0.2).done
        other.execute("ROLLBACK")
        opened.result(HANG_TIMEOUT_S).close()


class InterruptedConnection:
    """A connection to a file without tables, which another server creates after the first statement."""

    def __init__(self, path: Path) -> None:
        self._path, self._rows = path, [list[Any]()]

    def execute(self, sql: str) -> "InterruptedConnection":
        with closing(sqlite3.connect(self._path)) as connection:
            self._rows = connection.execute(sql).fetchall()
        open_connection(self._path).close()
        return self

    def fetchall(self) -> list[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return self._rows[0]


def test_tables_that_another_server_creates_meanwhile_are_those_of_a_store(path: Path) -> None:
    path.parent.mkdir()
    connection: Any = InterruptedConnection(path)
    assert [schema.check_schema(connection) for _ in range(2)] == [0, SCHEMA_VERSION]


def test_store_that_stays_locked_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_S", 0.05)
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="database is locked"):
            open_connection(path)


async def test_store_files_are_readable_by_their_owner_only(path: Path) -> None:
    async with open_test_store(path) as store:
        await add_log(store, "a").wait_published()
        assert file_mode(path.parent) == 0o700
        names = {file.name: file_mode(file) for file in path.parent.iterdir()}
        assert len(names) == 3 and set(names.values()) == {0o600}, names
