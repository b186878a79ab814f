"""SQL statements of persistent stores, as synchronous methods of one connection. They use no threads and no clock.

SQLite and PostgreSQL run the same statements; what differs is in the subclasses of `Database`.

Each response, each event and each item id has a row of its own. One process writes the rows of a response; its name is
in the column `writer` until the response has ended, and it checks before each step that the name is still its own.
To cancel the response, another process sets `cancel_requested`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import structlog

from antiphon.app.inspection.summaries import read_stats
from antiphon.app.store.base import OwnedResponse
from antiphon.app.store.batches.batch_tables import BatchTables
from antiphon.app.store.batches.file_tables import FileTables
from antiphon.app.store.batches.records import StoredBatch
from antiphon.app.store.batches.upload_tables import UploadTables
from antiphon.app.store.blobs.blob_tables import BlobHolder, BlobTables
from antiphon.app.store.blobs.evictions import Evictions, StoreLimits
from antiphon.app.store.completion_tables import CompletionTables
from antiphon.app.store.conversation_tables import ConversationTables
from antiphon.app.store.history.continuation_tables import ContinuationTables
from antiphon.app.store.history.deleted_entries import DeletedEntries
from antiphon.app.store.history.event_tables import EventTables
from antiphon.app.store.history.record_tables import RecordTables
from antiphon.app.store.history.step_rows import (
    EVENT_COLUMNS,
    ITEM_COLUMNS,
    RESPONSE_COLUMNS,
    Columns,
    NewStep,
    completed_item_ids,
    encode_entry,
    encode_response,
    last_response,
)
from antiphon.app.store.history.summary_tables import SUMMARY_COLUMNS, SummaryTables, encode_summary
from antiphon.app.store.history.turn_tables import TurnTables, decode_items
from antiphon.app.store.history.usage_tables import UsageTable
from antiphon.app.store.sql_connection import SqlConnection, UnreadableRowError, decode_row
from antiphon.app.turn_types.blob_urls import find_blobs
from antiphon.app.turn_types.event_log import EventLog, LogEntry, is_terminal
from antiphon.events.response import Response

_SIZE = """length(input_items)
    + coalesce((SELECT length(messages) FROM chat_completions WHERE chat_completions.id = responses.id), 0)
    + coalesce((SELECT length(data) FROM turn_records WHERE turn_records.id = responses.id), 0)
    + (SELECT sum(length(data) + coalesce(length(detail), 0) + coalesce(length(journal), 0))
       FROM events WHERE response = responses.id)
"""
"""Bytes of a row of `responses` with all that is stored for it."""
NO_OWNER_LIMITS: Mapping[str, int] = MappingProxyType({})
OwnedTable = Literal["responses", "batches", "files"]
"""Tables whose rows each belong to one server, their `writer`, until they are complete."""
RELEASE_RESPONSES = f"UPDATE responses SET writer = NULL, size = {_SIZE}"  # noqa: S608
"""Begin of the statement that ends responses."""
_log = structlog.get_logger(__name__)
_response_decoder = msgspec.json.Decoder(Response)


class Database:
    """A connection to the database. One thread at a time may use it."""

    commit_number = 0
    """Number of the last transaction that was committed, if the database counts them."""
    is_volatile = False
    """True if the data ends with this process: the steps of a response need not be written before the last one."""
    max_responses: float = inf
    """Number of responses above which the oldest are deleted."""
    commit_is_uncertain = False
    """True if the last transaction was interrupted after its COMMIT was sent."""

    def __init__(self, connection: SqlConnection, completions: CompletionTables, records: RecordTables) -> None:
        self._connection, self.completions, self.records = connection, completions, records
        self.blobs = BlobTables(connection)
        self.conversations, self.turns = ConversationTables(connection, self.blobs), TurnTables(connection)
        self.continuations, self.summaries = ContinuationTables(connection), SummaryTables(connection)
        self.events, self.deleted_entries = EventTables(connection), DeletedEntries(connection)
        self.files, self.batches = FileTables(connection), BatchTables(connection)
        self.uploads, self.usage = UploadTables(connection, self.files), UsageTable(connection)

    def query_rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs one SQL statement for a look at the tables from outside, as tests need it. Returns all its rows."""
        return list(self._connection.execute(statement, values).fetchall())

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def begin(self, *, sync: bool) -> None:
        """Begins a write transaction. With `sync`, if not always, its data is on disk when `commit` returns."""
        raise NotImplementedError

    def commit(self) -> None:
        """Commits the transaction, which makes it visible to other connections."""
        self.records.write_blocks()
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Rolls the transaction back, if there is one."""
        raise NotImplementedError

    def is_outage(self, _error: Exception) -> bool:
        """Tells whether a failed transaction shall be repeated until it succeeds, however long that takes."""
        return False

    def reconnect(self) -> int:
        """Connects again after an outage. Returns the number of this writer's last transaction in the database."""
        raise NotImplementedError

    def measure_bytes(self) -> int:
        """Returns the size of the whole database in bytes."""
        raise NotImplementedError

    # Writes, to be called between `begin` and `commit`

    def insert_responses(self, logs: Sequence[EventLog], writer: str) -> None:
        """Inserts new responses with their input items and blobs, before their first events."""
        self._insert_rows("responses", RESPONSE_COLUMNS, [encode_response(log, writer) for log in logs])
        self._insert_items((log.owner, item.id, log.id) for log in logs for item in log.input_items if item.id)
        self.continuations.insert((log.id, log.continuation) for log in logs if log.continuation is not None)
        for log in logs:
            holder = BlobHolder(log.owner, "response", log.id)
            self.blobs.add_references(holder, find_blobs(log.input_items), log.blobs)

    def append_steps(self, steps: Sequence[NewStep], writer: str) -> set[str]:
        """Inserts steps. Returns the ids of responses whose writer is not `writer`; nothing is inserted for them."""
        ids = list({step.response_id for step in steps})
        owned = self._select_owned(ids, writer)
        steps = [step for step in steps if step.response_id in owned]
        events = [encode_entry(step, entry) for step in steps for entry in step.entries]
        self._insert_rows("events", EVENT_COLUMNS, events)
        self._insert_items(
            (step.owner, item_id, step.response_id) for step in steps for item_id in completed_item_ids(step.entries)
        )
        ended = [step for step in steps if is_terminal(step.entries)]
        for step in ended:
            if step.pack_record is not None and (record := step.pack_record()) is not None:
                self.records.insert(step.owner, step.response_id, record)
        self._release_responses([step.response_id for step in ended])
        rows = [encode_summary(step.owner, step.stats or read_stats(last_response(step))) for step in ended]
        self._insert_rows("turn_summaries", SUMMARY_COLUMNS, rows, "ON CONFLICT (id) DO NOTHING")
        self.continuations.delete([step.response_id for step in ended if step.is_continuable])
        return set(ids) - owned

    def _insert_items(self, rows: Iterable[tuple[str, str, str]]) -> None:
        self._insert_rows("items", ITEM_COLUMNS, list(rows), "ON CONFLICT DO NOTHING")

    def _insert_rows(self, table: str, columns: Columns, rows: Sequence[Sequence[Any]], suffix: str = "") -> None:
        """Inserts rows, which may be none, in few statements."""
        raise NotImplementedError

    def _select_owned(self, ids: Sequence[str], writer: str) -> set[str]:
        """Returns those of the responses that belong to this writer."""
        raise NotImplementedError

    def _release_responses(self, ids: Sequence[str]) -> None:
        """Marks responses, which may be none, as ended."""
        raise NotImplementedError

    def request_cancel(self, response_id: str) -> None:
        """Asks the process that writes a response to end it."""
        self._connection.execute(
            "UPDATE responses SET cancel_requested = 1 WHERE id = ? AND writer IS NOT NULL", (response_id,)
        )

    def announce(self, response_id: str) -> None:
        """Notifies the readers of a response of its events, if the database can. Others poll it."""

    def count_events(self, response_id: str) -> int:
        """Returns the number of stored events of a response."""
        query = "SELECT count(*) FROM events WHERE response = ?"
        count: int = self._connection.execute(query, (response_id,)).fetchone()[0]
        return count

    def owned_responses(self, writer: str) -> dict[str, OwnedResponse]:
        """Returns the unfinished responses of a writer by their ids."""
        query = "SELECT id, cancel_requested, wanted FROM responses WHERE writer = ?"
        return {row[0]: OwnedResponse(*map(bool, row[1:])) for row in self._connection.execute(query, (writer,))}

    def take_over(self, row_id: str, old: str, new: str, table: OwnedTable = "responses") -> bool:
        """Makes `new` the writer of a row. Returns False if `old` is no longer its writer."""
        statement = f"UPDATE {table} SET writer = ? WHERE id = ? AND writer = ?"  # noqa: S608
        return self._connection.execute(statement, (new, row_id, old)).rowcount == 1

    def delete_response(self, response_id: str) -> int:
        """Deletes a response, and with it the whole chat completion that it is a choice of.

        Returns the size of the blobs, and of the blocks of prompts, that no other response refers to.
        """
        freed_bytes = 0
        for each in self.completions.delete_with_choice(response_id):
            self.summaries.keep_place_of(each)  # reads the row of the response
            # Before all else, so that no other server adds blobs to it meanwhile.
            self._connection.execute("DELETE FROM responses WHERE id = ?", (each,))
            freed_bytes += self.blobs.delete_references(each) + self.records.delete(each)
            self.summaries.delete(each)
            for statement in (
                "DELETE FROM items WHERE response = ?",
                "DELETE FROM events WHERE response = ?",
                "DELETE FROM continuations WHERE response = ?",
            ):
                self._connection.execute(statement, (each,))
        return freed_bytes

    def start_batch(self, owner: str, batch: StoredBatch, writer: str) -> bool:
        """Inserts a batch. Returns False if its input file does not exist any more."""
        self.files.hold_file(batch.input_file_id)
        if self.files.find_file(owner, batch.input_file_id, batch.created_at) is None:
            return False
        self.batches.insert_batch(owner, batch, writer)
        return True

    def delete_unused_file(self, file_id: str) -> bool:
        """Deletes a file. Returns False, and keeps it, if it is the input of a batch that has not ended."""
        self.files.hold_file(file_id)
        if self.batches.is_input(file_id):
            return False
        self.files.delete_file(file_id)
        return True

    def use_approvals(self, owner: str, nonces: Sequence[str], now: float) -> bool:
        """Records that approvals are used, all or none. Returns False if one was used before, by any server."""
        statement = "INSERT INTO used_approvals (owner, nonce, used) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        nonces = sorted(nonces)  # two servers that use the same ones do not wait for each other
        for index, nonce in enumerate(nonces):
            if self._connection.execute(statement, (owner, nonce, int(now))).rowcount != 1:
                self.release_approvals(owner, nonces[:index])
                return False
        return True

    def release_approvals(self, owner: str, nonces: Sequence[str]) -> None:
        """Deletes the records that these approvals are used."""
        for nonce in nonces:
            self._connection.execute("DELETE FROM used_approvals WHERE owner = ? AND nonce = ?", (owner, nonce))

    def delete_used_approvals(self, before: float) -> None:
        """Deletes the records of approvals that were used before `before`."""
        self._connection.execute("DELETE FROM used_approvals WHERE used < ?", (int(before),))

    def save_heartbeat(self, writer: str, now: float, figures: str) -> None:
        """Records that this writer is alive at `now`, and the figures of its server."""
        statement = (
            "INSERT INTO writers (name, heartbeat, stats) VALUES (?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET heartbeat = excluded.heartbeat, stats = excluded.stats"
        )
        self._connection.execute(statement, (writer, now, figures))

    def delete_writer(self, writer: str) -> None:
        """Deletes the heartbeat of a writer that exits."""
        self._connection.execute("DELETE FROM writers WHERE name = ?", (writer,))

    def delete_expired(self, before: int, max_bytes: int, owner_bytes: Mapping[str, int] = NO_OWNER_LIMITS) -> bool:
        """Deletes finished responses: those created before `before`, then those of large owners until the rest fits.

        The limits are `max_bytes`, blobs and files included, `max_responses`, and those of some owners. One call
        deletes a limited number. Returns whether none is left to delete.
        """
        limits = StoreLimits(before, max_bytes, self.max_responses, owner_bytes)
        other_bytes = self.blobs.count_bytes() + self.records.count_bytes() + self.files.count_kept_bytes()
        other_bytes += self.conversations.count_row_bytes(None)
        return Evictions(self._connection, limits, self.delete_response).run(other_bytes)

    # Reads

    def find_log(self, owner: str, response_id: str) -> tuple[EventLog, str | None] | None:
        """Returns the current log of the owner's response, and its writer, which is None if the response has ended.

        Returns None if the owner has no such response, and for one that is unreadable.
        """
        query = "SELECT base_response, input_items, writer FROM responses WHERE id = ? AND owner = ?"
        row = self._connection.execute(query, (response_id, owner)).fetchone()
        if row is None:
            return None
        try:
            log = EventLog(decode_row(_response_decoder.decode, row[0]), owner, decode_items(row[1]))
            log.add_stored(self.load_entries(response_id))
        except UnreadableRowError as error:
            _log.error("stored response is unreadable", response=response_id, error=str(error))
            return None
        if row[2] is None:
            log.end_log()
        return log, row[2]

    def load_entries(self, response_id: str, start: int = 0) -> list[LogEntry]:
        """Returns the log entries of a response from sequence number `start` on. Raises `UnreadableRowError`."""
        return list(self.events.iterate_entries(response_id, start))

    def list_heartbeats(self) -> list[tuple[str, float, str]]:
        """Returns the name of each writer, its latest heartbeat, and the figures of its server."""
        return self._connection.execute("SELECT name, heartbeat, stats FROM writers").fetchall()

    def list_servers(self, now: float) -> list[tuple[str, float, str]]:
        """Returns the name of each writer, the seconds since its latest heartbeat, and the figures of its server."""
        return [(name, now - heartbeat, figures) for name, heartbeat, figures in self.list_heartbeats()]

    def find_writer(self, response_id: str) -> str | None:
        """Returns the writer of a response; None if the response has ended or was deleted."""
        row = self._connection.execute("SELECT writer FROM responses WHERE id = ?", (response_id,)).fetchone()
        return row[0] if row else None

    def list_orphaned(
        self, alive: Callable[[str, float], bool], table: OwnedTable = "responses"
    ) -> list[tuple[str, str, str]]:
        """Returns owner, id and writer of each incomplete row whose writer is dead.

        `alive` receives a writer's name and its latest heartbeat, 0 if it has none.
        """
        query = f"""
            SELECT owner, id, writer, coalesce(heartbeat, 0) FROM {table} LEFT JOIN writers ON name = writer
            WHERE writer IS NOT NULL
        """  # noqa: S608
        rows = self._connection.execute(query).fetchall()
        return [(owner, row_id, writer) for owner, row_id, writer, heartbeat in rows if not alive(writer, heartbeat)]
