"""SQL statements of the table of responses that another process can continue, as methods of one connection."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from antiphon.app.store.sql_connection import SqlConnection
from antiphon.app.turn_types.continuation import Continuation

MAX_CONTINUATIONS = 3
"""Number of processes in a row that may continue a response without more output: one that ends all is given up."""


class StoredContinuation(NamedTuple):
    """A row: `position` grows with the responses' arrival, `attempts` counts processes since its last output."""

    content: Continuation
    position: int
    attempts: int


class ContinuationTables:
    """Statements on continuations. The writes are called inside a transaction of the connection."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection

    def insert(self, rows: Iterable[tuple[str, Continuation]]) -> None:
        """Inserts what is needed to continue new responses, by their ids."""
        statement = "INSERT INTO continuations (response, model, digest, data) VALUES (?, ?, ?, ?)"
        for response_id, continuation in rows:
            values = response_id, continuation.model, continuation.digest, continuation.data
            self._connection.execute(statement, values)

    def find(self, response_id: str) -> StoredContinuation | None:
        """Returns what is needed to continue a response; None if no process can."""
        query = "SELECT model, digest, data, position, attempts FROM continuations WHERE response = ?"
        row = self._connection.execute(query, (response_id,)).fetchone()
        if row is None:
            return None
        return StoredContinuation(Continuation(model=row[0], digest=row[1], data=bytes(row[2])), row[3], row[4])

    def count_attempt(self, response_id: str) -> None:
        """Records that a process continues a response."""
        self._connection.execute("UPDATE continuations SET attempts = attempts + 1 WHERE response = ?", (response_id,))

    def clear_attempts(self, response_id: str) -> None:
        """Records that the process that continues a response has stored more of it."""
        self._connection.execute("UPDATE continuations SET attempts = 0 WHERE response = ?", (response_id,))

    def delete(self, ids: Sequence[str]) -> None:
        """Deletes the rows of responses that have ended."""
        for response_id in ids:
            self._connection.execute("DELETE FROM continuations WHERE response = ?", (response_id,))
