"""SQL statements of the tables of files, as methods of one connection.

A file is written in pieces, each in a transaction of its own, so that no other commit waits for a whole file. Its row
has a `writer` until it is complete, and only then does it exist for clients. The pieces of a deleted file are deleted
later, a few in a transaction: its row is kept, without an owner, until the last one.
"""

from collections.abc import Sequence
from typing import Any

from antiphon.app.store.batches.records import StoredFile
from antiphon.app.store.history.deleted_entries import DeletedEntries
from antiphon.app.store.sql_connection import SqlConnection, delete_numbered, write_marks

DELETED_OWNER = "\x7fdeleted"
"""Owner of files that do not exist any more. No owner has this name: those are hexadecimal or empty."""
_COLUMNS = "id, created, expires, filename, purpose, size, media_type, upload"
FILE_ROW_BYTES = 1024
"""Bytes that a file counts besides its content, so that the number of empty ones is limited, too."""
MAX_PURGED_FILES = 100
"""Deleted files whose rows are deleted in one transaction."""
_FIND_DELETED = "SELECT id FROM files WHERE owner = ?"
_IS_LISTED = "writer IS NULL AND upload IS NULL"
_EXISTS = f"{_IS_LISTED} AND (expires IS NULL OR expires > ?)"
_IS_KEPT = "owner <> ? AND purpose NOT IN ('batch', 'batch_output')"
"""Condition on a file that counts for the size of the store and is deleted with responses of its age."""


class FileTables:
    """Statements on files. The writes are called inside a transaction of the connection. `now` is in seconds."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection, self._deleted = connection, DeletedEntries(connection)

    # Writes

    def insert_file(self, owner: str, file: StoredFile, writer: str) -> None:
        """Inserts a file without content, which `writer` is going to write."""
        statement = f"INSERT INTO files ({_COLUMNS}, owner, writer) VALUES ({write_marks(10)})"  # noqa: S608
        row = (file.id, file.created_at, file.expires_at, file.filename, file.purpose, 0, file.media_type)
        self._connection.execute(statement, (*row, file.upload_id, owner, writer))

    def append_piece(self, file_id: str, writer: str, number: int, data: bytes) -> bool:
        """Appends a piece. Returns False if the file does not belong to this writer any more.

        A file may be complete only with pieces of `FILE_PIECE_BYTES` before the last one.
        """
        statement = "UPDATE files SET size = size + ? WHERE id = ? AND writer = ?"
        if self._connection.execute(statement, (len(data), file_id, writer)).rowcount != 1:
            return False
        self._connection.execute(
            "INSERT INTO file_pieces (file, number, data) VALUES (?, ?, ?)", (file_id, number, data)
        )
        return True

    def lock_file(self, file_id: str, writer: str) -> bool:
        """Keeps other servers from deleting an incomplete file until the commit. Returns False if one has done so."""
        statement = "UPDATE files SET size = size WHERE id = ? AND writer = ?"
        return self._connection.execute(statement, (file_id, writer)).rowcount == 1

    def hold_file(self, file_id: str) -> None:
        """Keeps other servers from deleting a file, or from beginning a batch that reads it, until the commit."""
        self._connection.execute("UPDATE files SET size = size WHERE id = ?", (file_id,))

    def complete_file(self, file: StoredFile, writer: str) -> bool:
        """Makes a file exist for its owner. Returns False if it does not belong to this writer any more."""
        statement = """
            UPDATE files SET filename = ?, purpose = ?, expires = ?, media_type = ?, writer = NULL
            WHERE id = ? AND writer = ?
        """
        values = (file.filename, file.purpose, file.expires_at, file.media_type, file.id, writer)
        return self._connection.execute(statement, values).rowcount == 1

    def discard_file(self, file_id: str, writer: str) -> None:
        """Deletes a file that this writer has not completed, as `delete_file` does."""
        if self.lock_file(file_id, writer):
            self.delete_file(file_id)

    def delete_file(self, file_id: str) -> None:
        """Deletes a file, complete or not. Its pieces stay until `purge_pieces`."""
        self._mark_deleted("id = ?", (file_id,))

    def delete_parts(self, upload_id: str) -> None:
        """Deletes the parts of an upload that are complete."""
        statement = "UPDATE files SET owner = ? WHERE upload = ? AND writer IS NULL"
        self._connection.execute(statement, (DELETED_OWNER, upload_id))

    def delete_older(self, oldest: int) -> None:
        """Deletes the files that were created before a time and belong to no batch."""
        self._mark_deleted(f"writer IS NULL AND {_IS_KEPT} AND created < ?", (DELETED_OWNER, oldest))

    def delete_expired(self, now: float) -> None:
        """Deletes the files whose time is over, but not inputs of batches that run."""
        condition = """
            writer IS NULL AND expires <= ?
            AND NOT EXISTS (SELECT 1 FROM batches WHERE input_file = files.id AND batches.writer IS NOT NULL)
        """
        self._mark_deleted(condition, (int(now),))

    def _mark_deleted(self, condition: str, values: Sequence[Any]) -> None:
        """Deletes the files with a condition, and keeps the places of those that were in lists."""
        query = f"SELECT owner, id, created, position FROM files WHERE {_IS_LISTED} AND owner <> ? AND {condition}"  # noqa: S608
        self._deleted.record("files", self._connection.execute(query, (DELETED_OWNER, *values)).fetchall())
        statement = f"UPDATE files SET owner = ?, writer = NULL WHERE {condition}"  # noqa: S608
        self._connection.execute(statement, (DELETED_OWNER, *values))

    def purge_pieces(self, max_pieces: int) -> None:
        """Deletes at most `max_pieces` pieces of deleted files, and the row of each file after its last piece."""
        for row in self._connection.execute(f"{_FIND_DELETED} LIMIT ?", (DELETED_OWNER, MAX_PURGED_FILES)).fetchall():
            max_pieces -= delete_numbered(self._connection, "file_pieces", "file", row[0], max_pieces)
            if max_pieces <= 0:
                return  # the file may have more
            self._connection.execute("DELETE FROM files WHERE id = ?", row)

    # Reads

    def has_deleted(self) -> bool:
        """Tells whether a deleted file still has rows."""
        return self._connection.execute(f"{_FIND_DELETED} LIMIT 1", (DELETED_OWNER,)).fetchone() is not None

    def find_file(self, owner: str, file_id: str, now: float) -> StoredFile | None:
        """Returns the owner's file with this id, if it exists."""
        query = f"SELECT {_COLUMNS} FROM files WHERE owner = ? AND id = ? AND {_EXISTS}"  # noqa: S608
        row = self._connection.execute(query, (owner, file_id, int(now))).fetchone()
        return None if row is None else _decode_file(row)

    def list_files(
        self, owner: str, now: float, *, limit: int, after: str | None, purpose: str | None, descending: bool
    ) -> list[StoredFile] | None:
        """Returns at most `limit` of the owner's files, in the order of their creation, those behind `after`.

        The file `after` may have been deleted. Returns None if there was none.
        """
        conditions, values = ["owner = ?", _EXISTS], [owner, int(now)]
        if purpose is not None:
            conditions.append("purpose = ?")
            values.append(purpose)
        if after is not None:
            place = self._deleted.find_place("files", owner, after, descending=descending, condition=_IS_LISTED)
            if place is None:
                return None
            conditions.append(f"position {'<' if descending else '>'} ?")
            values.append(place[1])
        direction = "DESC" if descending else "ASC"
        query = f"""
            SELECT {_COLUMNS} FROM files WHERE {" AND ".join(conditions)} ORDER BY position {direction} LIMIT ?
        """  # noqa: S608  # every value is a parameter
        return [_decode_file(row) for row in self._connection.execute(query, (*values, limit)).fetchall()]

    def count_bytes(self, owner: str) -> int:
        """Returns the size of all files of an owner, incomplete ones included, with `FILE_ROW_BYTES` for each."""
        query = "SELECT coalesce(sum(size + ?), 0) FROM files WHERE owner = ?"
        return int(self._connection.execute(query, (FILE_ROW_BYTES, owner)).fetchone()[0])

    def count_kept_bytes(self) -> int:
        """Returns the size of the files of all owners that belong to no batch, incomplete ones and parts included."""
        query = f"SELECT coalesce(sum(size + ?), 0) FROM files WHERE {_IS_KEPT}"  # noqa: S608
        return int(self._connection.execute(query, (FILE_ROW_BYTES, DELETED_OWNER)).fetchone()[0])

    def list_parts(self, owner: str, upload_id: str) -> list[StoredFile]:
        """Returns the complete parts of an upload, in the order of their creation."""
        query = f"SELECT {_COLUMNS} FROM files WHERE owner = ? AND upload = ? AND writer IS NULL ORDER BY position"  # noqa: S608
        return [_decode_file(row) for row in self._connection.execute(query, (owner, upload_id)).fetchall()]

    def find_files(self, owner: str, file_ids: Sequence[str], now: float) -> list[StoredFile]:
        """Returns those of the owner's files with these ids that exist, the latest first."""
        query = f"""
            SELECT {_COLUMNS} FROM files WHERE owner = ? AND id IN ({write_marks(len(file_ids))}) AND {_EXISTS}
            ORDER BY position DESC
        """  # noqa: S608
        return [_decode_file(row) for row in self._connection.execute(query, (owner, *file_ids, int(now))).fetchall()]

    def read_piece(self, file_id: str, number: int) -> bytes | None:
        """Returns a piece of a file; None after the last one, and if the file was deleted."""
        query = "SELECT data FROM file_pieces WHERE file = ? AND number = ?"
        row = self._connection.execute(query, (file_id, number)).fetchone()
        return None if row is None else bytes(row[0])


def _decode_file(row: Sequence[Any]) -> StoredFile:
    file_id, created, expires, filename, purpose, size, media_type, upload_id = row
    return StoredFile(
        id=file_id,
        created_at=created,
        expires_at=expires,
        filename=filename,
        purpose=purpose,
        size=size,
        media_type=media_type,
        upload_id=upload_id,
    )
