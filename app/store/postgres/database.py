"""The connection of one server to PostgreSQL: transactions, and the statements that differ from SQLite's.

Each transaction of a writer has a number, which its row in `writers` holds. After an interrupted COMMIT, the number
tells whether the transaction was made. All commits wait for the disk, also those of a foreground response's steps: one
commit serves all streams, so none of them waits longer, and a crash of the database loses nothing.

A notification takes a lock of the whole database server until the commit. A writer therefore notifies others of the
steps of those responses only that another server has said it reads, and at most once in a transaction.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql

from antiphon.app.store.base import OwnedResponse
from antiphon.app.store.completion_tables import CompletionTables
from antiphon.app.store.database import NO_OWNER_LIMITS, RELEASE_RESPONSES, Database, OwnedTable
from antiphon.app.store.history.record_tables import RecordTables
from antiphon.app.store.history.step_rows import Columns, NewStep
from antiphon.app.store.postgres.address import DatabaseAddress
from antiphon.app.store.postgres.connection import PostgresConnection, is_outage
from antiphon.app.store.sql_connection import SqlConnection
from antiphon.app.turn_types.event_log import is_terminal

STEPS_CHANNEL = "antiphon_steps"
"""Tells readers of new events: `id:number,…` with the numbers of events that there are, or `*` for all responses."""
WANTED_CHANNEL = "antiphon_wanted"
"""Tells the writer of a response, by its id, that another server reads it."""
CANCEL_CHANNEL = "antiphon_cancel"
"""Tells the writer of a response, by its id, that it is to be cancelled."""
MAX_PAYLOAD_CHARS = 7900
"""PostgreSQL's limit is 8 000 bytes; ids are ASCII."""
SWEEP_LOCK = 0x616E7469_73776570
"""Key of the advisory lock of the server that deletes expired responses."""
_NOW = "extract(epoch FROM clock_timestamp())::float8"


class PostgresReads(Database):
    """A connection that only reads."""

    def __init__(self, connection: SqlConnection) -> None:
        super().__init__(connection, CompletionTables(connection, "strpos"), RecordTables(connection))

    def has_foreign_key(self, encryption_key: str, lease_s: float) -> bool:
        """Tells whether a live writer has another encryption key."""
        query = f"""
            SELECT 1 FROM writers
            WHERE abs(heartbeat - {_NOW}) < ? AND encryption_key <> '' AND encryption_key <> ?
        """  # noqa: S608
        return self._connection.execute(query, (lease_s, encryption_key)).fetchone() is not None

    def list_servers(self, now: float) -> list[tuple[str, float, str]]:  # noqa: ARG002  # the database has a clock
        """Returns the name of each writer, the seconds since its latest heartbeat, and the figures of its server."""
        return self._connection.execute(f"SELECT name, {_NOW} - heartbeat, stats FROM writers").fetchall()  # noqa: S608


class PostgresDatabase(PostgresReads):
    """The connection of a writer. `lease_s` is the time for which other writers are spared after an outage."""

    def __init__(
        self, address: DatabaseAddress, name: str = "", encryption_key: str = "", lease_s: float = 0.0
    ) -> None:
        self._session = PostgresConnection(address)
        super().__init__(self._session)
        self._name, self._encryption_key, self._lease_s = name, encryption_key, lease_s
        self._figures: str | None = None
        """Figures of the server that the next commit saves; None if they have not changed."""
        self.wanted: set[str] = set()
        """Ids of responses that other servers read. Another thread adds to it."""
        self._news: dict[str, int] = {}
        """Number of events of each wanted response that the current transaction changes."""

    def begin(self, *, sync: bool) -> None:  # noqa: ARG002  # every commit is synced
        """Begins a transaction. Its data is on disk when `commit` returns.

        The row of this writer is locked, so that nothing of it is taken over before the end of the transaction. The
        database ends it if this process pauses for its lease, so that others can take its rows over then.
        """
        self.commit_is_uncertain = False
        self.records.forget_changes()
        limit = f"SET LOCAL idle_in_transaction_session_timeout = {int(self._lease_s * 1000)}"
        script = f"BEGIN ISOLATION LEVEL READ COMMITTED; {limit}"
        if self._name:
            script += f"; SELECT 1 FROM writers WHERE name = {self._quote(self._name)} FOR NO KEY UPDATE"  # noqa: S608
        self._session.run_script(script)

    def commit(self) -> None:
        """Commits the transaction with its number and its notification."""
        self.records.write_blocks()
        script = ["COMMIT"]
        if self._news:
            pairs = ",".join(f"{response_id}:{number}" for response_id, number in self._news.items())
            payload = pairs if len(pairs) <= MAX_PAYLOAD_CHARS else "*"
            script.insert(0, f"SELECT pg_notify('{STEPS_CHANNEL}', {self._quote(payload)})")
        if self._name:
            script.insert(0, self._save_writer(self.commit_number + 1))
        self.commit_is_uncertain = True
        self._session.run_script("; ".join(script))
        self.commit_is_uncertain, self._figures = False, None
        self.commit_number += 1
        self._news.clear()

    def rollback(self) -> None:
        """Rolls the transaction back. Where the connection has been lost, the database does."""
        self._news.clear()
        if not self._session.session.closed:
            self.commit_is_uncertain = False  # the database has refused it
            with contextlib.suppress(psycopg.Error):
                self._session.run_script("ROLLBACK")

    def is_outage(self, error: Exception) -> bool:
        """Tells whether a failed transaction shall be repeated until it succeeds."""
        return is_outage(error)

    def measure_bytes(self) -> int:
        """Returns the size of the database, with those of other users in it."""
        return int(self._connection.execute("SELECT pg_database_size(current_database())").fetchone()[0])

    def reconnect(self) -> int:
        """Connects again. Returns the number of this writer's last transaction in the database."""
        self._session.reopen()
        row = self._connection.execute("SELECT commits FROM writers WHERE name = ?", (self._name,)).fetchone()
        return row[0] if row else 0

    def _quote(self, text: str) -> str:
        return sql.Literal(text).as_string(self._session.session)

    def _save_writer(self, number: int) -> str:
        """Returns a statement that saves the heartbeat of this writer and the number of its transaction."""
        name, key, figures = map(self._quote, (self._name, self._encryption_key, self._figures or ""))
        changed = "heartbeat = excluded.heartbeat, commits = excluded.commits"
        if self._figures is not None:
            changed += ", stats = excluded.stats"
        return f"""
            INSERT INTO writers (name, heartbeat, commits, encryption_key, stats)
            VALUES ({name}, {_NOW}, {number}, {key}, {figures}) ON CONFLICT (name) DO UPDATE SET {changed}
        """  # noqa: S608

    # Writes, to be called between `begin` and `commit`

    def append_steps(self, steps: Sequence[NewStep], writer: str) -> set[str]:
        """Inserts steps, and notes which of them to announce."""
        lost = super().append_steps(steps, writer)
        for step in steps:
            if step.response_id in self.wanted and step.response_id not in lost and step.entries:
                self._news[step.response_id] = step.entries[-1].event.sequence_number + 1
        self.wanted.difference_update(step.response_id for step in steps if is_terminal(step.entries))
        return lost

    def _insert_rows(self, table: str, columns: Columns, rows: Sequence[Sequence[Any]], suffix: str = "") -> None:
        if rows:
            arrays = ", ".join(f"?::{type_name}[]" for type_name in columns.values())
            statement = f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM unnest({arrays}) {suffix}"  # noqa: S608
            self._connection.execute(statement, [list(column) for column in zip(*rows, strict=True)])

    def _select_owned(self, ids: Sequence[str], writer: str) -> set[str]:
        query = "SELECT id FROM responses WHERE id = ANY(?) AND writer = ?"
        return {row[0] for row in self._connection.execute(query, (list(ids), writer))} if ids else set()

    def _release_responses(self, ids: Sequence[str]) -> None:
        if ids:
            self._connection.execute(f"{RELEASE_RESPONSES} WHERE id = ANY(?)", (list(ids),))

    def announce(self, response_id: str) -> None:
        """Notifies the readers of a response of its events so far, and from now on of each step."""
        if self.find_writer(response_id) == self._name:
            self.wanted.add(response_id)
            self._news[response_id] = self.count_events(response_id)

    def request_cancel(self, response_id: str) -> None:
        """Asks the process that writes a response to end it, and notifies that process."""
        super().request_cancel(response_id)
        self._connection.execute("SELECT pg_notify(?, ?)", (CANCEL_CHANNEL, response_id))

    def take_over(self, row_id: str, old: str, new: str, table: OwnedTable = "responses") -> bool:
        """Makes `new` the writer of a row, unless another server does so at the same time, or `old` is writing.

        The check of a row's writer and the insertion of its events are two statements of one transaction.
        """
        lock = "SELECT 1 FROM writers WHERE name = ? FOR UPDATE SKIP LOCKED"
        is_locked = self._connection.execute(lock, (old,)).fetchone() is not None
        if not is_locked and self._connection.execute("SELECT 1 FROM writers WHERE name = ?", (old,)).fetchone():
            return False
        statement = f"""
            UPDATE {table} SET writer = ?
            WHERE id = (SELECT id FROM {table} WHERE id = ? AND writer = ? FOR UPDATE SKIP LOCKED)
        """  # noqa: S608
        return self._connection.execute(statement, (new, row_id, old)).rowcount == 1

    def save_heartbeat(self, writer: str, now: float, figures: str) -> None:  # noqa: ARG002  # the database has a clock
        """Makes the commit save the figures. Every commit records that this writer is alive."""
        self._figures = figures

    def delete_writer(self, writer: str) -> None:
        """Deletes the heartbeat of a writer that exits or is dead. The next commit does not save its own again."""
        self._name = "" if writer == self._name else self._name
        super().delete_writer(writer)

    def delete_expired(self, before: int, max_bytes: int, owner_bytes: Mapping[str, int] = NO_OWNER_LIMITS) -> bool:
        """Deletes expired responses and excess ones, unless another server is doing so."""
        if not self._connection.execute("SELECT pg_try_advisory_xact_lock(?)", (SWEEP_LOCK,)).fetchone()[0]:
            return True
        return super().delete_expired(before, max_bytes, owner_bytes)

    # Reads

    def owned_responses(self, writer: str) -> dict[str, OwnedResponse]:
        """Returns the unfinished responses of a writer, and notes which of them others read."""
        owned = super().owned_responses(writer)
        self.wanted.update(response_id for response_id, state in owned.items() if state.is_wanted)
        return owned
