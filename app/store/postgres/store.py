"""The store in a PostgreSQL database. Each server of a cluster reads, resumes and cancels the others' responses."""

import asyncio
from contextlib import ExitStack

import psycopg

from antiphon.app.store.base import StoreError
from antiphon.app.store.postgres.address import DatabaseAddress, parse_address
from antiphon.app.store.postgres.connection import BoundedConnection
from antiphon.app.store.postgres.database import PostgresDatabase, PostgresReads
from antiphon.app.store.postgres.follower import Follower
from antiphon.app.store.postgres.schema import create_tables
from antiphon.app.store.store import ResponseStore
from antiphon.app.store.writing import writer_lease
from antiphon.app.store.writing.write_ops import NOT_WRITABLE, StoreTimings
from antiphon.app.turn_types.event_log import EventLog

MAX_TRANSACTION_S = 5.0
"""Time of a transaction after which new responses are refused: the database does not answer."""


class PostgresStore(ResponseStore):
    """Stores logs in the database at `url`. Must be closed.

    `encryption_key` identifies the key of sealed texts: servers that run at the same time must have the same one.
    """

    def __init__(
        self,
        url: str,
        *,
        encryption_key: str = "",
        timings: StoreTimings = StoreTimings(),  # noqa: B008  # it is frozen
        max_bytes: int = 4 * 2**30,
    ) -> None:
        address = parse_address(url)
        create_tables(address)
        name = writer_lease.create_name()
        with ExitStack() as undo:
            self._written = PostgresDatabase(address, name, encryption_key, timings.lease_s)
            undo.callback(self._written.close)
            self._bounded = BoundedConnection(address)
            undo.callback(self._bounded.close)
            self._reads = PostgresReads(self._bounded)
            try:
                super().__init__(name, (self._written, self._reads, self._reads), timings, max_bytes)
                undo.callback(self._writer.close)
                undo.callback(self._overdue_timer.cancel)
                self._require_same_key(address, encryption_key)
            except psycopg.Error as error:
                raise StoreError(f"cannot open the store {address.label}: {address.describe_error(error)}") from None
            undo.pop_all()
        self._follower = Follower(address, self._logs)

    def _require_same_key(self, address: DatabaseAddress, encryption_key: str) -> None:
        """Raises `StoreError` if a server that runs has another key: clients could not use its sealed texts here."""
        if self._reads.has_foreign_key(encryption_key, self._timings.lease_s):
            remedy = "Copy its key file, and name it with --encryption-key-file."
            raise StoreError(f"another server of the store {address.label} has another encryption key. {remedy}")

    async def close(self) -> None:
        """Writes everything that is pending and closes the connections."""
        await asyncio.to_thread(self._follower.close)
        await super().close()

    def unavailable_reason(self) -> str | None:
        """Returns the reason why nothing can be stored now, or None."""
        if self._writer.busy_s() > MAX_TRANSACTION_S:
            return NOT_WRITABLE
        return super().unavailable_reason()

    async def prepare_read(self, owner: str, response_id: str = "") -> None:
        """Waits until the database answers, so that the reads that follow do not keep the event loop waiting."""
        if self._logs.find(owner, response_id) is None:
            await self._bounded.wait_readable()

    def _follow_remote(self, log: EventLog) -> None:
        self._follower.follow(log)
