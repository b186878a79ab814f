"""The connection to a store file: its transactions, and its writes in few statements.

Each step of a statement gives Python's global lock away and takes it again, for which it waits up to 5 ms while the
event loop is busy. With a statement for each event, a transaction of 200 streams would wait hundreds of times.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from antiphon.app.base.event_log import EventLog, is_terminal
from antiphon.app.store.completion_tables import CompletionTables
from antiphon.app.store.database import (
    RELEASE_RESPONSES,
    Database,
    NewStep,
    completed_item_ids,
    encode_response,
    list_event_rows,
)
from antiphon.app.store.sqlite.schema import open_connection

ROWS_PER_STATEMENT = (128, 32, 8, 2, 1)
"""Numbers of rows for which there are statements. Few different ones, so that SQLite's compiled ones are reused.

Rows have at most six values, and SQLite before 3.32 takes 999 values in a statement.
"""


class SqliteDatabase(Database):
    """A connection to the store file."""

    def __init__(self, path: Path) -> None:
        self._file: sqlite3.Connection = open_connection(path)
        super().__init__(self._file, CompletionTables(self._file, "instr"))

    def begin(self, *, sync: bool) -> None:
        """Begins a write transaction."""
        self._file.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
        self._file.execute("BEGIN IMMEDIATE")

    def rollback(self) -> None:
        """Rolls the transaction back, if there is one."""
        if self._file.in_transaction:
            self._file.execute("ROLLBACK")

    def insert_responses(self, logs: Sequence[EventLog], writer: str) -> None:
        """Inserts new responses with their input items, before their first events."""
        columns = "responses (id, owner, created, base_response, input_items, writer)"
        self._insert_rows(columns, [encode_response(log, writer) for log in logs])
        self._insert_items([(log.owner, item.id, log.id) for log in logs for item in log.input_items if item.id])

    def append_steps(self, steps: Sequence[NewStep], writer: str) -> set[str]:
        """Inserts steps. Returns the ids of responses whose writer is not `writer`; nothing is inserted for them."""
        ids = list({step.response_id for step in steps})
        owned = self._select_owned(ids, writer)
        steps = [step for step in steps if step.response_id in owned]
        events = list_event_rows(steps)
        self._insert_rows("events (response, number, data, detail)", events)
        self._insert_items(
            [(step.owner, item_id, step.response_id) for step in steps for item_id in completed_item_ids(step.entries)]
        )
        ended = [step.response_id for step in steps if is_terminal(step.entries)]
        for part in _split(ended):
            self._file.execute(f"{RELEASE_RESPONSES} WHERE id IN ({_marks(len(part))})", part)
        return set(ids) - owned

    def _select_owned(self, ids: Sequence[str], writer: str) -> set[str]:
        owned: set[str] = set()
        for part in _split(ids):
            query = f"SELECT group_concat(id) FROM responses WHERE writer = ? AND id IN ({_marks(len(part))})"  # noqa: S608
            row = self._file.execute(query, (writer, *part)).fetchone()
            owned.update(row[0].split(",") if row[0] else ())
        return owned

    def _insert_items(self, rows: Sequence[tuple[str, str | None, str]]) -> None:
        self._insert_rows("items (owner, id, response)", rows, " ON CONFLICT DO NOTHING")

    def _insert_rows(self, columns: str, rows: Sequence[Sequence[Any]], suffix: str = "") -> None:
        for part in _split(rows):
            row = f"({_marks(len(part[0]))})"
            statement = f"INSERT INTO {columns} VALUES {', '.join([row] * len(part))}{suffix}"  # noqa: S608
            self._file.execute(statement, [value for values in part for value in values])


def _split(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yields the rows in parts, of which each has as many as a statement of `ROWS_PER_STATEMENT`."""
    start = 0
    for size in ROWS_PER_STATEMENT:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


def _marks(count: int) -> str:
    return ", ".join("?" * count)
