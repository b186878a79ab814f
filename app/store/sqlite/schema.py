"""The schema of a store file: migrating it, checking it, and opening a connection to it."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from antiphon.app.store.base import StoreError
from antiphon.app.store.sqlite.versions import MIGRATIONS, SCHEMA, split_script

SCHEMA_VERSION = 12
CHANGED_TABLES = "its tables are not those of its version"
MOVE_REMEDY = "Restore it from a copy, or move it away to begin with an empty store."


def open_connection(path: Path, keep_copy: Callable[[int], None] = lambda _: None) -> sqlite3.Connection:
    """Opens a connection to the file, which is created if missing. Raises `StoreError`.

    `keep_copy` is called with the version of a file before its schema changes.
    """
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)  # before SQLite creates it: the -wal and -shm files get the same mode
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
            stack.callback(connection.close)
            connection.text_factory = decode_text
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA secure_delete = ON")
            _migrate(connection, keep_copy)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot open the store {path}: {error}") from None
        stack.pop_all()
    return connection


def open_existing(path: Path) -> sqlite3.Connection:
    """Opens a connection to a store file of this version, beside the servers that use it. Raises `StoreError`."""
    if not path.is_file():
        raise StoreError(f"{path}: there is no such file")
    connection = sqlite3.connect(path, isolation_level=None, timeout=10.0)
    connection.text_factory = decode_text
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        is_ours = {"responses", "events", "items"} <= {table for table, _ in _list_columns(connection)}
    except sqlite3.Error as error:
        connection.close()
        raise StoreError(f"{path} cannot be read: {error}") from None
    if is_ours and version == SCHEMA_VERSION:
        return connection
    connection.close()
    if not is_ours:
        raise StoreError(f"{path} is no store of responses")
    remedy = "start the server once, which changes it" if version < SCHEMA_VERSION else "upgrade Antiphon"
    raise StoreError(f"{path} has schema version {version}, and this is version {SCHEMA_VERSION}: {remedy}")


def open_memory() -> sqlite3.Connection:
    """Opens a connection to a new database in memory. Nothing of it is written to disk."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA temp_store = MEMORY")
    _migrate(connection)
    connection.execute("CREATE INDEX by_size ON responses (created, size)")  # the sizes are summed up often
    return connection


def decode_text(data: bytes) -> str:
    """Decodes a text column. A damaged text is no error."""
    return data.decode("utf-8", "replace")


def check_schema(connection: sqlite3.Connection) -> None:
    """Checks that the tables of a file are those of its version, or that there are none.

    Migrates in a transaction that is rolled back. A file of a newer version passes: `open_connection` refuses it.
    Raises `StoreError` for a database of another program, and for one whose tables were changed.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        return
    is_ours = {"responses", "events", "items"} <= {table for table, _ in _list_columns(connection)}
    if version == 0 and not _list_columns(connection):
        return
    if version == 0 or not is_ours:
        raise StoreError("it is a database of another program. Choose another file with --store.")
    with contextlib.closing(sqlite3.connect(":memory:")) as reference:
        for statement in split_script(SCHEMA):
            reference.execute(statement)
        expected = _list_columns(reference)
    connection.execute("BEGIN IMMEDIATE")
    try:
        _run_migrations(connection, version)
        missing = expected - _list_columns(connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        raise StoreError(f"{CHANGED_TABLES} ({error}). {MOVE_REMEDY}") from None
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if missing:
        names = ", ".join(sorted(f"{table}.{column}" for table, column in missing))
        raise StoreError(f"{CHANGED_TABLES} (missing columns: {names}). {MOVE_REMEDY}")


def _list_columns(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """Returns the table and name of every column."""
    query = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    return set(connection.execute(query).fetchall())


def _run_migrations(connection: sqlite3.Connection, version: int) -> None:
    for migration in MIGRATIONS[version - 1 :]:
        for statement in split_script(migration):
            connection.execute(statement)


def _migrate(connection: sqlite3.Connection, keep_copy: Callable[[int], None] = lambda _: None) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if 0 < version < SCHEMA_VERSION:
        keep_copy(version)
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        connection.execute("ROLLBACK")
        raise StoreError(
            f"it was created by a newer Antiphon (schema version {version}; this one supports up to {SCHEMA_VERSION}). "
            "Upgrade Antiphon."
        )
    if version == 0:
        for statement in split_script(SCHEMA):
            connection.execute(statement)
    else:
        _run_migrations(connection, version)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
