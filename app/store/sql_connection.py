"""Interface of a database connection for persistent stores, and the decoding of its rows."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

T = TypeVar("T")
ROWS_PER_STATEMENT = 128
"""Rows, or keys, in one statement: SQLite before 3.32 takes 999 values. PostgreSQL's driver would send many statements
as one pipeline, and the database does not end the transaction of a server that is paused within one."""


class UnreadableRowError(Exception):
    """A row of a response cannot be decoded, because the database was damaged."""


class SqlRows(Protocol):
    """The rows that a statement returned."""

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement changed."""
        ...

    def fetchone(self) -> Any:
        """Returns the next row; None after the last one."""

    def fetchall(self) -> list[Any]:
        """Returns the remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class SqlConnection(Protocol):
    """A connection that commits each statement by itself outside BEGIN and COMMIT. `?` stands for a value."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> SqlRows:
        """Runs a statement."""
        ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Runs a statement once for each row of values."""
        ...

    def close(self) -> None:
        """Closes the connection."""


class StoredRows:
    """Rows that have been read completely."""

    def __init__(self, rows: list[Any], rowcount: int) -> None:
        self._rows, self.rowcount = iter(rows), rowcount

    def fetchone(self) -> Any:
        """Returns the next row; None after the last one."""
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        """Returns the remaining rows."""
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


def split_rows(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yields the rows, or keys, in parts of `ROWS_PER_STATEMENT` at most."""
    return (rows[start : start + ROWS_PER_STATEMENT] for start in range(0, len(rows), ROWS_PER_STATEMENT))


def write_marks(count: int) -> str:
    """Returns the placeholders of values."""
    return ", ".join("?" * count)


def insert_rows(
    connection: SqlConnection, table: str, columns: Collection[str], rows: Sequence[Sequence[Any]], suffix: str = ""
) -> None:
    """Inserts rows, of which there is at least one, in one statement."""
    marks = ", ".join([f"({write_marks(len(columns))})"] * len(rows))
    statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {marks} {suffix}"  # noqa: S608
    connection.execute(statement, [value for row in rows for value in row])


def delete_numbered(connection: SqlConnection, table: str, column: str, row_id: str, limit: int) -> int:
    """Deletes at most `limit` rows with `row_id` in a column, those with the smallest numbers. Returns how many."""
    query = f"SELECT number FROM {table} WHERE {column} = ? ORDER BY number LIMIT ?"  # noqa: S608
    numbers = connection.execute(query, (row_id, limit)).fetchall()
    if numbers:
        statement = f"DELETE FROM {table} WHERE {column} = ? AND number <= ?"  # noqa: S608
        connection.execute(statement, (row_id, *numbers[-1]))
    return len(numbers)


def decode_row(decode: Callable[[bytes], T], data: bytes) -> T:
    """Decodes a column of JSON. Raises `UnreadableRowError`."""
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        raise UnreadableRowError(str(error)) from None
