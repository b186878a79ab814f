"""The tables in a SQLite file: creating them, checking them, and opening a connection to the file."""

import contextlib
import sqlite3
import time
from pathlib import Path

from antiphon.app.store.base import StoreError
from antiphon.app.store.tables import SCHEMA_VERSION, SQLITE, create_statements, describe_mismatch

LOCK_TIMEOUT_S = 10.0
"""Longest wait for a lock of the store file."""
LOCK_RETRY_S = 0.01
"""Time between two attempts to set the journal mode of a file that another connection locks."""
PRIMARY_CODE_MASK = 0xFF
"""Lowest byte of an extended result code of SQLite: the primary code."""
MOVE_REMEDY = "Use the Antiphon that wrote it, or move it away to begin with an empty store."
ORDERED_TABLES = ("files", "batches", "chat_completions", "conversation_items")
KEEP_POSITIONS = """
CREATE TRIGGER {table}_position AFTER INSERT ON {table}
WHEN new.position <= (SELECT max(position) FROM deleted_entries WHERE list = '{table}')
BEGIN
    UPDATE {table} SET position = (SELECT max(position) + 1 FROM deleted_entries WHERE list = '{table}')
    WHERE position = new.position;
END"""
"""Places a new row behind deleted ones: SQLite gives the position of the last row again once it has been deleted."""


def open_connection(path: Path) -> sqlite3.Connection:
    """Opens a connection to the file, which is created if missing. Raises `StoreError`."""
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)  # before SQLite creates it: the -wal and -shm files get the same mode
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=LOCK_TIMEOUT_S)
            stack.callback(connection.close)
            connection.text_factory = decode_text
            _enable_wal(connection)
            connection.execute("PRAGMA secure_delete = ON")
            _create_tables(connection)
        except (sqlite3.Error, OSError, StoreError) as error:
            raise StoreError(f"cannot open the store {path}: {error}") from None
        stack.pop_all()
    return connection


def open_existing(path: Path) -> sqlite3.Connection:
    """Opens a connection to a store file of this version, beside the servers that use it. Raises `StoreError`."""
    if not path.is_file():
        raise StoreError(f"{path}: there is no such file")
    with contextlib.ExitStack() as stack:
        connection = sqlite3.connect(path, isolation_level=None, timeout=LOCK_TIMEOUT_S)
        stack.callback(connection.close)
        connection.text_factory = decode_text
        try:
            require_schema(connection)
        except (sqlite3.Error, StoreError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from None
        stack.pop_all()
    return connection


def open_memory() -> sqlite3.Connection:
    """Opens a connection to a new database in memory. Nothing of it is written to disk."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA temp_store = MEMORY")
    _create_tables(connection)
    connection.execute("CREATE INDEX by_size ON responses (created, size)")  # the sizes are summed up often
    return connection


def decode_text(data: bytes) -> str:
    """Decodes a text column. A damaged text is no error."""
    return data.decode("utf-8", "replace")


def check_schema(connection: sqlite3.Connection) -> int:
    """Checks that a file has the tables of this version, or none. Returns the version, 0 without tables.

    Raises `StoreError` for a database of another program, and for one whose tables are others.
    """
    query = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    columns = connection.execute(query).fetchall()
    # Read last: another server may commit both in between.
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if not columns and version in (0, SCHEMA_VERSION):
        return 0
    if version == 0 or not {"responses", "events", "items"} <= {table for table, _ in columns}:
        raise StoreError("it is a database of another program. Choose another file with --store.")
    if fault := describe_mismatch(version, columns):
        raise StoreError(f"{fault}. {MOVE_REMEDY}")
    return version


def require_schema(connection: sqlite3.Connection) -> None:
    """Raises `StoreError` for a file without the tables of this version."""
    if not check_schema(connection):
        raise StoreError("it has no tables")


def list_statements() -> list[str]:
    """Returns the statements that make an empty database one of `SCHEMA_VERSION`."""
    triggers = [KEEP_POSITIONS.format(table=table) for table in ORDERED_TABLES]
    return [*create_statements(SQLITE), *triggers, f"PRAGMA user_version = {SCHEMA_VERSION}"]


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Sets the journal mode of the file. Raises `sqlite3.Error`.

    SQLite does not wait for the lock of another connection that does the same, as a second server that starts does.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & PRIMARY_CODE_MASK != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(LOCK_RETRY_S)
        else:
            return


def _create_tables(connection: sqlite3.Connection) -> None:
    """Creates the tables, unless they exist. Raises `StoreError` for other tables."""
    if check_schema(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    if not check_schema(connection):  # no other process has created them since
        for statement in list_statements():
            connection.execute(statement)
    connection.execute("COMMIT")
