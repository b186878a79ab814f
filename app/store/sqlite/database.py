"""The connection to a store file: its transactions, and its writes in few statements.

Each step of a statement gives Python's global lock away and takes it again, for which it waits up to 5 ms while the
event loop is busy. With a statement for each event, a transaction of 200 streams would wait hundreds of times.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from antiphon.app.store.completion_tables import CompletionTables
from antiphon.app.store.database import RELEASE_RESPONSES, Database
from antiphon.app.store.history.record_tables import RecordTables
from antiphon.app.store.history.step_rows import Columns
from antiphon.app.store.sql_connection import SqlConnection, StoredRows, insert_rows, write_marks
from antiphon.app.store.sqlite.schema import open_memory

STATEMENT_SIZES = (128, 32, 8, 2, 1)
"""Numbers of rows for which there are statements. Few different ones, so that SQLite's compiled ones are reused.

Rows have at most six values, and SQLite before 3.32 takes 999 values in a statement.
"""

_SIZE_PRAGMAS = ("page_count", "page_size")


class SqliteDatabase(Database):
    """A connection to the store file."""

    def __init__(self, connection: SqlConnection) -> None:
        super().__init__(connection, CompletionTables(connection, "instr"), RecordTables(connection))

    def begin(self, *, sync: bool) -> None:
        """Begins a write transaction."""
        self.records.forget_changes()
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
        self._connection.execute("BEGIN IMMEDIATE")

    def rollback(self) -> None:
        """Rolls the transaction back, if there is one."""
        with contextlib.suppress(sqlite3.OperationalError):
            self._connection.execute("ROLLBACK")

    def measure_bytes(self) -> int:
        """Returns the size of the pages of the database, free ones included."""
        pages, page_bytes = (self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _SIZE_PRAGMAS)
        return int(pages) * int(page_bytes)

    def _insert_rows(self, table: str, columns: Columns, rows: Sequence[Sequence[Any]], suffix: str = "") -> None:
        for part in _split(rows):
            insert_rows(self._connection, table, columns, part, suffix)

    def _select_owned(self, ids: Sequence[str], writer: str) -> set[str]:
        owned: set[str] = set()
        for part in _split(ids):
            query = f"SELECT group_concat(id) FROM responses WHERE writer = ? AND id IN ({write_marks(len(part))})"  # noqa: S608
            row = self._connection.execute(query, (writer, *part)).fetchone()
            owned.update(row[0].split(",") if row[0] else ())
        return owned

    def _release_responses(self, ids: Sequence[str]) -> None:
        for part in _split(ids):
            self._connection.execute(f"{RELEASE_RESPONSES} WHERE id IN ({write_marks(len(part))})", part)


class MemoryDatabase(SqliteDatabase):
    """A database in memory, for all threads of the process. It keeps at most `max_responses`.

    SQLite's own ways of sharing one between connections refuse reads during a transaction, or let them see it half
    done. So all threads use one connection, and reads wait until the transaction of the writer has ended.
    """

    is_volatile = True

    def __init__(self, max_responses: int) -> None:
        self._shared = SharedConnection(open_memory())
        super().__init__(self._shared)
        self.max_responses = max_responses

    def begin(self, *, sync: bool) -> None:
        """Begins a write transaction. Other threads wait until it has ended."""
        self._shared.lock.acquire()
        super().begin(sync=sync)

    def commit(self) -> None:
        """Commits the transaction."""
        super().commit()
        self._shared.lock.release()

    def rollback(self) -> None:
        """Rolls the transaction back, if there is one."""
        super().rollback()
        with contextlib.suppress(RuntimeError):  # there is none
            self._shared.lock.release()


class SharedConnection:
    """A connection that threads use in turn. `lock` may be held for more than one statement.

    All rows of a statement are read at once: while one of a connection to a file is not at its end, all statements of
    that connection see the file as it was at the begin of this one.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.lock = threading.RLock()

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> StoredRows:
        """Runs a statement and reads all its rows."""
        with self.lock:
            cursor = self._connection.execute(statement, values)
            return StoredRows(cursor.fetchall(), cursor.rowcount)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Runs a statement once for each row of values."""
        with self.lock:
            self._connection.executemany(statement, rows)

    def close(self) -> None:
        """Closes the connection, if it is open."""
        with self.lock:
            self._connection.close()


def _split(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yields the rows in parts, of which each has as many as a statement of `STATEMENT_SIZES`."""
    start = 0
    for size in STATEMENT_SIZES:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size
