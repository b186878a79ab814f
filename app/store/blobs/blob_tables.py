"""SQL statements of the tables of blobs, as methods of one connection.

A blob is stored once for each owner, in rows of 1 MiB. Each row of another table whose JSON has a blob URL has a row in
`blob_references`, made and deleted in the same transaction; with the last of them the blob is deleted. A transaction
changes the row of a blob before it adds or deletes a reference, so two servers never do so at the same time.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal

import structlog
from msgspec import Struct

from antiphon.app.store.sql_connection import SqlConnection
from antiphon.app.turn_types.blob_urls import BlobContents, BlobReference

BLOB_PIECE_BYTES = 1 << 20
"""Bytes in a row of a blob's content."""
EVICTED_KINDS = ("response", "completion")
"""Kinds of rows that are deleted when the store is full. Blobs that only others hold do not count for its size."""
_IS_EVICTED = f"kind IN ({', '.join(repr(kind) for kind in EVICTED_KINDS)})"
_log = structlog.get_logger(__name__)


class BlobHolder(Struct, frozen=True):
    """A row that refers to blobs: a response, the messages of a chat completion, or an item of a conversation."""

    owner: str
    kind: Literal["response", "completion", "conversation"]
    id: str
    item_id: str = ""
    """Id of the item in a conversation."""

    def key(self) -> tuple[str, str, str]:
        """Returns the values of the columns for the kind, the holder and its item."""
        return self.kind, self.id, item_key(self.item_id) if self.item_id else ""


def item_key(item_id: str) -> str:
    """Returns what stands for an item in its column. Clients choose ids, which may be too long for an index."""
    return hashlib.sha256(item_id.encode("utf-8", "surrogatepass")).hexdigest()


class BlobTables:
    """Statements on blobs. The writes are called inside a transaction of the connection."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection

    # Writes

    def add_references(self, holder: BlobHolder, references: Iterable[BlobReference], contents: BlobContents) -> None:
        """Adds the references of a row, and those blobs of `contents` that are not stored yet.

        There is no reference to a blob that is neither stored nor in `contents`: another server has just deleted it.
        """
        for sha256 in sorted({reference.sha256 for reference in references}):  # in one order, against deadlocks
            if self._lock_blob(holder.owner, sha256) or self._insert_blob(holder.owner, sha256, contents.get(sha256)):
                self._connection.execute(
                    "INSERT INTO blob_references (kind, holder, item, owner, sha256) VALUES (?, ?, ?, ?, ?) "
                    "ON CONFLICT DO NOTHING",
                    (*holder.key(), holder.owner, sha256),
                )

    def add_to_response(
        self, owner: str, response_id: str, references: Iterable[BlobReference], contents: BlobContents
    ) -> None:
        """Adds references of a response that is stored already. Does nothing if it has been deleted."""
        statement = "UPDATE responses SET owner = owner WHERE id = ? AND owner = ?"  # locks it
        if self._connection.execute(statement, (response_id, owner)).rowcount == 1:
            self.add_references(BlobHolder(owner, "response", response_id), references, contents)

    def delete_references(self, holder_id: str, item_key: str | None = None) -> int:
        """Deletes the references of a holder, or of one of its items, and the blobs that no other row refers to.

        `item_key` is the last value of `BlobHolder.key`. Returns the freed bytes; 0 for holders that are never evicted.
        """
        condition, values = "holder = ?", [holder_id]
        if item_key is not None:
            condition, values = f"{condition} AND item = ?", [holder_id, item_key]
        query = f"SELECT DISTINCT owner, sha256 FROM blob_references WHERE {condition}"  # noqa: S608
        blobs = sorted((owner, bytes(sha256)) for owner, sha256 in self._connection.execute(query, values).fetchall())
        for owner, sha256 in blobs:
            self._lock_blob(owner, sha256)
        if blobs:
            self._connection.execute(f"DELETE FROM blob_references WHERE {condition}", values)  # noqa: S608
        return sum(self._delete_unused(owner, sha256) for owner, sha256 in blobs)

    def _lock_blob(self, owner: str, sha256: bytes) -> bool:
        """Keeps other servers from changing the references of a blob until the commit. Returns whether it exists."""
        statement = "UPDATE blobs SET size = size WHERE owner = ? AND sha256 = ?"
        return self._connection.execute(statement, (owner, sha256)).rowcount == 1

    def _insert_blob(self, owner: str, sha256: bytes, content: bytes | None) -> bool:
        """Inserts a blob, unless another server has done so since it was looked for. Returns whether it exists."""
        if content is None:
            return False
        statement = "INSERT INTO blobs (owner, sha256, size) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        if self._connection.execute(statement, (owner, sha256, len(content))).rowcount != 1:
            return self._lock_blob(owner, sha256)
        statement = "INSERT INTO blob_pieces (owner, sha256, number, data) VALUES (?, ?, ?, ?)"
        for number, start in enumerate(range(0, len(content), BLOB_PIECE_BYTES)):
            self._connection.execute(statement, (owner, sha256, number, content[start : start + BLOB_PIECE_BYTES]))
        return True

    def _delete_unused(self, owner: str, sha256: bytes) -> int:
        """Deletes a blob without references. Returns its size if no row that is evicted refers to it any more."""
        query = f"""
            SELECT size, count(kind), coalesce(max(CASE WHEN {_IS_EVICTED} THEN 1 ELSE 0 END), 0)
            FROM blobs LEFT JOIN blob_references USING (owner, sha256) WHERE owner = ? AND sha256 = ? GROUP BY size
        """  # noqa: S608
        row = self._connection.execute(query, (owner, sha256)).fetchone()
        if row is None:
            return 0
        size, num_references, is_counted = row
        if not num_references:
            self._connection.execute("DELETE FROM blob_pieces WHERE owner = ? AND sha256 = ?", (owner, sha256))
            self._connection.execute("DELETE FROM blobs WHERE owner = ? AND sha256 = ?", (owner, sha256))
        return 0 if is_counted else int(size)

    # Reads

    def load_blob(self, owner: str, sha256: bytes) -> bytes | None:
        """Returns the content of the owner's blob; None if there is none or it was damaged.

        Reads piece by piece: other threads that use the connection have their turn in between.
        """
        if (size := self.find_size(owner, sha256)) is None:
            return None
        pieces = [self._read_piece(owner, sha256, number) for number in range(-(-size // BLOB_PIECE_BYTES))]
        content = b"".join(piece for piece in pieces if piece is not None)
        if hashlib.sha256(content).digest() == sha256:
            return content
        if self.find_size(owner, sha256) is not None:  # else it was deleted meanwhile
            _log.error("stored blob is unreadable", sha256=sha256.hex()[:8])
        return None

    def find_size(self, owner: str, sha256: bytes) -> int | None:
        """Returns the size of the owner's blob; None if it is not stored."""
        row = self._connection.execute(
            "SELECT size FROM blobs WHERE owner = ? AND sha256 = ?", (owner, sha256)
        ).fetchone()
        return None if row is None else row[0]

    def _read_piece(self, owner: str, sha256: bytes, number: int) -> bytes | None:
        query = "SELECT data FROM blob_pieces WHERE owner = ? AND sha256 = ? AND number = ?"
        row = self._connection.execute(query, (owner, sha256, number)).fetchone()
        return row[0] if row is not None and isinstance(row[0], bytes) else None

    def count_bytes(self) -> int:
        """Returns the size of all blobs that a response or a chat completion refers to."""
        query = f"""
            SELECT coalesce(sum(size), 0) FROM blobs WHERE EXISTS (
                SELECT 1 FROM blob_references AS held
                WHERE held.owner = blobs.owner AND held.sha256 = blobs.sha256 AND {_IS_EVICTED}
            )
        """  # noqa: S608
        return int(self._connection.execute(query).fetchone()[0])

    def count_other_bytes(self, owner: str | None) -> int:
        """Returns the size of the other blobs, which only conversations refer to: those of an owner, or of all."""
        query = f"""
            SELECT coalesce(sum(size), 0) FROM blobs WHERE NOT EXISTS (
                SELECT 1 FROM blob_references AS held
                WHERE held.owner = blobs.owner AND held.sha256 = blobs.sha256 AND {_IS_EVICTED}
            )
        """  # noqa: S608
        condition, values = ("AND owner = ?", (owner,)) if owner is not None else ("", ())
        return int(self._connection.execute(f"{query} {condition}", values).fetchone()[0])
