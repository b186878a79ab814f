"""Connections to PostgreSQL with the interface that the statements of the store are written for."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, LiteralString

import psycopg
from psycopg.errors import (
    IdleInTransactionSessionTimeout,
    OperationalError,
    ProgramLimitExceeded,
    ReadOnlySqlTransaction,
)

from antiphon.app.errors import storage_unavailable
from antiphon.app.store.base import StoreError
from antiphon.app.store.postgres.address import DatabaseAddress
from antiphon.app.store.sql_connection import SqlRows, StoredRows

STATEMENT_READ_TIMEOUT_S = 2.0
"""Longest wait for a read. Only one in an outage takes it: later ones fail at once."""
PROBE = """
SELECT 1 FROM responses, events, items, conversations, conversation_items, chat_completions, files, batches, writers
LIMIT 0
"""
"""Query without rows that waits for a lock of any table that is read."""
NOT_READABLE = "The response store cannot be reached. Retry later."


class PostgresConnection:
    """A connection that can be opened again. One thread at a time may use it."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._address = address
        self.session = address.connect()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> SqlRows:
        """Runs a statement in which `?` stands for a value."""
        cursor = self.session.cursor(binary=True)
        return cursor.execute(_as_query(statement), [_clean_value(value) for value in values])

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Runs a statement once for each row of values."""
        with self.session.cursor() as cursor:
            cursor.executemany(_as_query(statement), [[_clean_value(value) for value in row] for row in rows])

    def run_script(self, script: str) -> None:
        """Runs statements without values, in one round trip."""
        self.session.execute(script)

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(psycopg.Error):
            self.session.close()

    def reopen(self) -> None:
        """Connects again. Raises `StoreError`."""
        self.close()
        self.session = self._address.connect()


def is_outage(error: Exception) -> bool:
    """Tells whether an error is due to the database server and its state, not to the statement.

    A server that became a standby, or whose disk is full, refuses writes until an operator has acted. One that ended
    the transaction of a process that paused has ended the connection, too.
    """
    kinds = (OperationalError, ReadOnlySqlTransaction, IdleInTransactionSessionTimeout, StoreError)
    return isinstance(error, kinds) and not isinstance(error, ProgramLimitExceeded)


ReadRequest = tuple[str, Sequence[Any], "Future[StoredRows]"]


class BoundedConnection:
    """A connection for reads on the event loop. A thread runs them, so that the wait for each one is limited."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._connection = PostgresConnection(address)
        self._requests: queue.SimpleQueue[ReadRequest | None] = queue.SimpleQueue()
        self._overdue: Future[StoredRows] | None = None
        self._probe: Future[StoredRows] | None = None
        threading.Thread(target=self._run, name="store-reads", daemon=True).start()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> StoredRows:
        """Runs a query. Raises `ApiError` 503 if the database does not answer."""
        result = self._request(statement, values)
        try:
            return result.result(STATEMENT_READ_TIMEOUT_S)
        except TimeoutError:
            self._overdue = result
            raise storage_unavailable(NOT_READABLE) from None
        except (psycopg.Error, StoreError) as error:
            if is_outage(error):
                raise storage_unavailable(NOT_READABLE) from None
            raise

    async def wait_readable(self) -> None:
        """Waits until the database has answered a query, without keeping the event loop waiting.

        Requests that wait at the same time share one query. Raises `ApiError` 503 if there is no answer.
        """
        if self._probe is None or self._probe.done():
            self._probe = self._request(PROBE)
        probe = self._probe
        waiting = asyncio.wrap_future(probe)
        waiting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it may end after the wait
        done, _ = await asyncio.wait({waiting}, timeout=STATEMENT_READ_TIMEOUT_S)
        if not done:
            self._overdue = probe
            raise storage_unavailable(NOT_READABLE)
        error = probe.exception()
        if error is not None and isinstance(error, Exception) and is_outage(error):
            raise storage_unavailable(NOT_READABLE)
        probe.result()

    def _request(self, statement: str, values: Sequence[Any] = ()) -> "Future[StoredRows]":
        """Queues a query for the thread. Raises `ApiError` 503 if it still waits for an earlier answer."""
        if self._overdue is not None and not self._overdue.done():
            raise storage_unavailable(NOT_READABLE)
        result: Future[StoredRows] = Future()
        result.set_running_or_notify_cancel()  # a caller that leaves does not cancel it
        self._requests.put((statement, values, result))
        return result

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Raises `NotImplementedError`: the event loop only reads."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the thread, which closes the connection."""
        self._requests.put(None)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            statement, values, result = request
            try:
                result.set_result(self._run_query(statement, values))
            except Exception as error:  # noqa: BLE001  # the caller handles it
                result.set_exception(error)
        self._connection.close()

    def _run_query(self, statement: str, values: Sequence[Any]) -> StoredRows:
        """Runs a query; once more on a new connection if the old one has been lost."""
        try:
            return _fetch_rows(self._connection, statement, values)
        except psycopg.Error:
            if not self._connection.session.closed:
                raise
        self._connection.reopen()
        return _fetch_rows(self._connection, statement, values)


def _fetch_rows(connection: PostgresConnection, statement: str, values: Sequence[Any]) -> StoredRows:
    cursor = connection.execute(statement, values)
    return StoredRows(cursor.fetchall(), cursor.rowcount)


def _as_query(statement: str) -> LiteralString:
    """Returns a statement with the placeholders of psycopg."""
    return statement.replace("?", "%s")


def _clean_value(value: Any) -> Any:
    """Returns a value without NUL characters, which PostgreSQL cannot store in texts. Clients may send them in ids."""
    if isinstance(value, list):
        return [_clean_value(each) for each in value]
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
