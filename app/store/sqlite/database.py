"""The connection to a store file: its transactions."""

import sqlite3
from pathlib import Path

from antiphon.app.store.completion_tables import CompletionTables
from antiphon.app.store.database import Database
from antiphon.app.store.sqlite.schema import open_connection


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
