"""The store in a PostgreSQL database. Each server of a cluster reads, resumes and cancels the others' responses."""

import asyncio
from contextlib import ExitStack

import psycopg

from antiphon.app.base.event_log import EventLog, LogEntry
from antiphon.app.store import writer_lease
from antiphon.app.store.base import StoreError
from antiphon.app.store.persistent import PersistentStore
from antiphon.app.store.postgres.address import DatabaseAddress, parse_address
from antiphon.app.store.postgres.connection import BoundedConnection
from antiphon.app.store.postgres.database import PostgresDatabase, PostgresReads
from antiphon.app.store.postgres.follower import Follower
from antiphon.app.store.postgres.schema import migrate_database
from antiphon.app.store.write_ops import NOT_WRITABLE, StoreTimings

MAX_TRANSACTION_S = 5.0
"""Time of a transaction after which new responses are refused: the database does not answer."""


class PostgresStore(PersistentStore):
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
        migrate_database(address)
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
                undo.callback(self._overdue_steps.close)
                self._require_same_key(address, encryption_key)
            except psycopg.Error as error:
                raise StoreError(f"cannot open the store {address.label}: {address.describe_error(error)}") from None
            undo.pop_all()
        self._followed: dict[str, EventLog] = {}
        self._follower = Follower(address, self)

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
        if self._cached_log(owner, response_id) is None:
            await self._bounded.wait_readable()

    def _follow_remote(self, log: EventLog) -> None:
        self._followed[log.id] = log
        self._follower.follow(log.id, len(log.entries))

    # Methods of `FollowListener`, called in the follower's thread, and their handlers on the event loop

    def on_remote_entries(self, response_id: str, entries: list[LogEntry], *, has_writer: bool) -> None:
        """Forwards new events to the event loop."""
        self._call_on_loop(self._handle_remote_entries, response_id, entries, has_writer)

    def on_wanted(self, response_id: str) -> None:
        """Forwards the id of a response that another server reads to the event loop."""
        self._call_on_loop(self._handle_wanted, response_id)

    def on_remote_cancel(self, response_id: str) -> None:
        """Forwards a cancellation to the event loop."""
        self._call_on_loop(self._handle_remote_cancel, response_id)

    def _handle_remote_entries(self, response_id: str, entries: list[LogEntry], has_writer: bool) -> None:
        log = self._followed[response_id] if has_writer else self._followed.pop(response_id)
        # After a deletion that failed, the follower may be ahead of a log that was read again.
        new_entries = [entry for entry in entries if entry.event.sequence_number >= len(log.entries)]
        self._add_remote_entries(log, new_entries, has_writer=has_writer)

    def _handle_wanted(self, response_id: str) -> None:
        if self._is_live(response_id):
            self._enqueue_change(lambda _: self._written.announce(response_id))

    def _handle_remote_cancel(self, response_id: str) -> None:
        if self._is_live(response_id):
            self._on_cancel_request(response_id)

    def _is_live(self, response_id: str) -> bool:
        return any(live_id == response_id for _, live_id in self._live)
