"""SQL statements of the tables of batches, as methods of one connection.

A batch has a `writer`, the server that runs it, until it has ended; only that server changes its row. Other servers may
set `cancel_requested`. Each line has a row from the validation on, with the reply as soon as there is one. The rows of
lines are deleted after the end of the batch, a few in a transaction.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import structlog

from antiphon.app.store.batches.records import BatchLine, LineResult, StoredBatch, TokenCounts
from antiphon.app.store.history.deleted_entries import DeletedEntries
from antiphon.app.store.sql_connection import (
    SqlConnection,
    UnreadableRowError,
    decode_row,
    delete_numbered,
    insert_rows,
    split_rows,
)

_log = structlog.get_logger(__name__)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StoredBatch)
MAX_PURGED_BATCHES = 100
"""Ended batches whose lines are deleted in one transaction."""
_FIND_OLD_LINES = "SELECT id FROM batches WHERE has_lines = 1 AND writer IS NULL"
_LINE_COLUMNS = ("batch", "number", "line_rank", "start", "length", "custom_id", "model")
_OPEN_BATCH_STATUSES = ("validating", "in_progress")


class BatchTables:
    """Statements on batches. The writes are called inside a transaction of the connection."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection, self._deleted = connection, DeletedEntries(connection)

    # Writes

    def insert_batch(self, owner: str, batch: StoredBatch, writer: str) -> None:
        """Inserts a batch that `writer` runs."""
        statement = """
            INSERT INTO batches (id, owner, created, input_file, data, writer, has_lines) VALUES (?, ?, ?, ?, ?, ?, 1)
        """
        row = (batch.id, owner, batch.created_at, batch.input_file_id, _encoder.encode(batch), writer)
        self._connection.execute(statement, row)

    def lock_batch(self, batch_id: str, writer: str) -> bool:
        """Keeps other servers from taking a batch over until the commit. Returns False if one has done so before."""
        statement = "UPDATE batches SET writer = writer WHERE id = ? AND writer = ?"
        return self._connection.execute(statement, (batch_id, writer)).rowcount == 1

    def save_batch(self, batch: StoredBatch, writer: str) -> StoredBatch | None:
        """Replaces the data of a batch, except the counts: those of `save_result` are kept.

        Returns the batch as it is now; None if it does not belong to this writer any more.
        """
        if (stored := self._load_locked(batch.id, writer)) is None:
            return None
        batch = msgspec.structs.replace(batch, completed=stored.completed, failed=stored.failed, usage=stored.usage)
        self._replace_data(batch)
        return batch

    def end_batch(self, batch: StoredBatch, writer: str) -> bool:
        """Saves a batch that has ended; its lines may be deleted. Returns False as `save_batch` returns None."""
        is_saved = self.save_batch(batch, writer) is not None
        if is_saved:
            self._connection.execute("UPDATE batches SET writer = NULL WHERE id = ?", (batch.id,))
        return is_saved

    def has_ended(self, batch: StoredBatch) -> bool:
        """Tells whether a batch has ended with these files: a change that was made already is made again."""
        query = "SELECT data FROM batches WHERE id = ? AND writer IS NULL"
        row = self._connection.execute(query, (batch.id,)).fetchone()
        if row is None:
            return False
        stored = decode_row(_decoder.decode, row[0])
        names = (batch.status, batch.output_file_id, batch.error_file_id)
        return names == (stored.status, stored.output_file_id, stored.error_file_id)

    def request_cancel(self, batch_id: str, now: float) -> None:
        """Asks the server that runs a batch to cancel it. The first request counts."""
        statement = (
            "UPDATE batches SET cancel_requested = ? WHERE id = ? AND writer IS NOT NULL AND cancel_requested = 0"
        )
        self._connection.execute(statement, (int(now), batch_id))

    def delete_lines(self, batch_id: str, writer: str) -> bool:
        """Deletes the lines of a batch whose validation begins again. Returns False as `lock_batch` does."""
        if not self.lock_batch(batch_id, writer):
            return False
        self._connection.execute("DELETE FROM batch_lines WHERE batch = ?", (batch_id,))
        return True

    def insert_lines(self, batch_id: str, writer: str, lines: Iterable[BatchLine]) -> bool:
        """Inserts lines without results. Those that exist are kept. Returns False as `lock_batch` does."""
        if not self.lock_batch(batch_id, writer):
            return False
        rows = [(batch_id, *msgspec.structs.astuple(line)) for line in lines]
        for part in split_rows(rows):
            insert_rows(self._connection, "batch_lines", _LINE_COLUMNS, part, "ON CONFLICT DO NOTHING")
        return True

    def save_result(self, batch_id: str, writer: str, result: LineResult, usage: TokenCounts) -> StoredBatch | None:
        """Stores the reply to a line and counts it. Returns the batch; None if it does not belong to this writer.

        A line that has a result keeps it.
        """
        if (batch := self._load_locked(batch_id, writer)) is None:
            return None
        statement = """
            UPDATE batch_lines SET status = ?, body = ?, request_id = ?
            WHERE batch = ? AND number = ? AND status IS NULL
        """
        values = (result.status, result.body, result.request_id, batch_id, result.number)
        if self._connection.execute(statement, values).rowcount == 1:
            is_completed = result.status == 200
            batch = msgspec.structs.replace(
                batch,
                completed=batch.completed + is_completed,
                failed=batch.failed + (not is_completed),
                usage=batch.usage + usage,
            )
            self._replace_data(batch)
        return batch

    def _load_locked(self, batch_id: str, writer: str) -> StoredBatch | None:
        """Locks a batch and returns it; None if it does not belong to this writer any more."""
        if not self.lock_batch(batch_id, writer):
            return None
        row = self._connection.execute("SELECT data FROM batches WHERE id = ?", (batch_id,)).fetchone()
        return decode_row(_decoder.decode, row[0])

    def _replace_data(self, batch: StoredBatch) -> None:
        self._connection.execute("UPDATE batches SET data = ? WHERE id = ?", (_encoder.encode(batch), batch.id))

    def purge_lines(self, max_lines: int) -> None:
        """Deletes at most `max_lines` lines of batches that have ended."""
        for row in self._connection.execute(f"{_FIND_OLD_LINES} LIMIT ?", (MAX_PURGED_BATCHES,)).fetchall():
            max_lines -= delete_numbered(self._connection, "batch_lines", "batch", row[0], max_lines)
            if max_lines <= 0:
                return  # the batch may have more
            self._connection.execute("UPDATE batches SET has_lines = 0 WHERE id = ?", row)

    def delete_expired(self, before: int) -> None:
        """Deletes the batches without lines that were created before `before`."""
        expired = "FROM batches WHERE created < ? AND writer IS NULL AND has_lines = 0"
        rows = self._connection.execute(f"SELECT owner, id, created, position {expired}", (before,)).fetchall()
        self._deleted.record("batches", rows)
        self._connection.execute(f"DELETE {expired}", (before,))

    # Reads

    def has_old_lines(self) -> bool:
        """Tells whether a batch that has ended still has rows of lines."""
        return self._connection.execute(f"{_FIND_OLD_LINES} LIMIT 1").fetchone() is not None

    def find_batch(self, owner: str, batch_id: str) -> StoredBatch | None:
        """Returns the owner's batch with this id."""
        query = "SELECT data, cancel_requested FROM batches WHERE owner = ? AND id = ?"
        row = self._connection.execute(query, (owner, batch_id)).fetchone()
        return None if row is None else _decode_batch(batch_id, *row)

    def list_batches(self, owner: str, *, limit: int, after: str | None) -> list[StoredBatch] | None:
        """Returns at most `limit` of the owner's batches, latest first, those behind `after`.

        The batch `after` may have been deleted. Returns None if there was none.
        """
        condition, values = "", list[Any]([owner])
        if after is not None:
            place = self._deleted.find_place("batches", owner, after, descending=True)
            if place is None:
                return None
            condition, values = "AND position < ?", [owner, place[1]]
        query = f"""
            SELECT id, data, cancel_requested FROM batches WHERE owner = ? {condition} ORDER BY position DESC LIMIT ?
        """  # noqa: S608
        rows = self._connection.execute(query, (*values, limit)).fetchall()
        return [batch for row in rows if (batch := _decode_batch(*row)) is not None]

    def list_owned(self, writer: str) -> list[tuple[str, StoredBatch]]:
        """Returns the batches that a server runs, each with its owner, oldest first."""
        query = "SELECT owner, id, data, cancel_requested FROM batches WHERE writer = ? ORDER BY position"
        rows = self._connection.execute(query, (writer,)).fetchall()
        return [(owner, batch) for owner, *row in rows if (batch := _decode_batch(*row)) is not None]

    def count_batches(self, owner: str) -> tuple[int, int]:
        """Returns the numbers of an owner's batches: of those that have not ended, and of all."""
        query = "SELECT count(writer), count(*) FROM batches WHERE owner = ?"
        num_open, num_kept = self._connection.execute(query, (owner,)).fetchone()
        return int(num_open), int(num_kept)

    def is_input(self, file_id: str) -> bool:
        """Tells whether a batch that has not ended reads this file."""
        query = "SELECT 1 FROM batches WHERE input_file = ? AND writer IS NOT NULL LIMIT 1"
        return self._connection.execute(query, (file_id,)).fetchone() is not None

    def list_open_lines(self, batch_id: str, after_rank: int, limit: int) -> list[BatchLine]:
        """Returns at most `limit` lines without results behind `after_rank`, in the order in which they run."""
        query = """
            SELECT number, line_rank, start, length, custom_id, model FROM batch_lines
            WHERE batch = ? AND status IS NULL AND line_rank > ? ORDER BY line_rank LIMIT ?
        """
        rows = self._connection.execute(query, (batch_id, after_rank, limit)).fetchall()
        return [
            BatchLine(number=number, rank=rank, start=start, length=length, custom_id=custom_id, model=model)
            for number, rank, start, length, custom_id, model in rows
        ]

    def list_results(self, batch_id: str, after_number: int, limit: int) -> list[LineResult]:
        """Returns at most `limit` lines behind a number, in the order of the input, with their replies."""
        query = """
            SELECT number, custom_id, status, body, request_id FROM batch_lines
            WHERE batch = ? AND number > ? ORDER BY number LIMIT ?
        """
        rows = self._connection.execute(query, (batch_id, after_number, limit)).fetchall()
        return [_decode_result(row) for row in rows]


def _decode_batch(batch_id: str, data: bytes, cancel_requested: int) -> StoredBatch | None:
    """Returns the batch of a row, `cancelling` from the request on; None, with a line in the log, if it was damaged."""
    try:
        batch = decode_row(_decoder.decode, data)
    except UnreadableRowError as error:
        _log.error("stored batch is unreadable", batch=batch_id, error=str(error))
        return None
    is_cancelled = cancel_requested and batch.status in _OPEN_BATCH_STATUSES
    return batch.with_status("cancelling", cancel_requested) if is_cancelled else batch


def _decode_result(row: Sequence[Any]) -> LineResult:
    number, custom_id, status, body, request_id = row
    return LineResult(
        number=number,
        custom_id=custom_id,
        status=status,
        body=bytes(body) if body is not None else b"",
        request_id=request_id or "",
    )
