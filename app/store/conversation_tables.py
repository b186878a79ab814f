"""SQL statements of the tables of conversations, as methods of one connection."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import structlog

from antiphon.app.store.base import StoredConversation
from antiphon.app.store.blobs.blob_tables import BlobHolder, BlobTables, item_key
from antiphon.app.store.history.deleted_entries import DeletedEntries
from antiphon.app.store.sql_connection import SqlConnection, UnreadableRowError, decode_row
from antiphon.app.turn_types.blob_urls import NO_BLOBS, BlobContents, find_blobs
from antiphon.events.inputs import AnyInput

ITEMS_PER_QUERY = 200
"""Rows of one result. Fetching it keeps all threads waiting."""
ITEM_ROW_BYTES = 256
"""Bytes that a conversation, and an item, counts besides its content."""
MAX_PAGE_BYTES = 32 << 20
"""Size of the items of a page. All of them are in memory at once."""
_log = structlog.get_logger(__name__)
_item_decoder = msgspec.json.Decoder[AnyInput](AnyInput)


class ItemPage(NamedTuple):
    """A part of the items of a conversation, in the order of its list."""

    items: tuple[AnyInput, ...]
    has_more: bool


class ConversationTables:
    """Statements on conversations. The writes are called inside a transaction of the connection."""

    def __init__(self, connection: SqlConnection, blobs: BlobTables) -> None:
        self._connection, self._blobs, self._deleted = connection, blobs, DeletedEntries(connection)

    def add_items(
        self, owner: str, conversation_id: str, items: Sequence[AnyInput], contents: BlobContents = NO_BLOBS
    ) -> bool:
        """Appends items to a conversation, with the blobs that they refer to. Returns False if it has been deleted."""
        if not self._lock_conversation(owner, conversation_id):
            return False
        holders = [(item, blobs) for item in items if (blobs := list(find_blobs((item,))))]
        for item, blobs in holders:
            holder = BlobHolder(owner, "conversation", conversation_id, item.id or "")
            self._blobs.add_references(holder, blobs, contents)
        statement = """
            INSERT INTO conversation_items (owner, conversation, id, data)
            SELECT owner, id, ?, ? FROM conversations WHERE owner = ? AND id = ?
        """
        rows = [(item.id, msgspec.json.encode(item), owner, conversation_id) for item in items]
        self._connection.executemany(statement, rows)
        return True

    def insert_conversation(
        self,
        owner: str,
        conversation: StoredConversation,
        items: Sequence[AnyInput] = (),
        contents: BlobContents = NO_BLOBS,
    ) -> None:
        """Inserts a conversation with its first items."""
        statement = (
            "INSERT INTO conversations (owner, id, created, metadata) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        )
        metadata = msgspec.json.encode(conversation.metadata)
        self._connection.execute(statement, (owner, conversation.id, conversation.created_at, metadata))
        self.add_items(owner, conversation.id, items, contents)

    def save_metadata(self, owner: str, conversation_id: str, metadata: dict[str, str]) -> bool:
        """Replaces the metadata of a conversation. Returns False if it has been deleted."""
        statement = "UPDATE conversations SET metadata = ? WHERE owner = ? AND id = ?"
        values = msgspec.json.encode(metadata), owner, conversation_id
        return self._connection.execute(statement, values).rowcount == 1

    def delete_conversation(self, owner: str, conversation_id: str) -> bool:
        """Deletes a conversation, its items and their blobs. Returns whether it existed."""
        if not self._lock_conversation(owner, conversation_id):
            return False
        self._connection.execute(
            "DELETE FROM conversation_items WHERE owner = ? AND conversation = ?", (owner, conversation_id)
        )
        self._connection.execute("DELETE FROM conversations WHERE owner = ? AND id = ?", (owner, conversation_id))
        self._blobs.delete_references(conversation_id)
        return True

    def delete_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Deletes an item of a conversation. Returns whether it existed."""
        place = "FROM conversation_items WHERE owner = ? AND conversation = ? AND id = ?"
        values = (owner, conversation_id, item_id)
        rows = self._connection.execute(f"SELECT position {place}", values).fetchall()
        entry_id = _entry_id(conversation_id, item_id)
        self._deleted.record("conversation_items", [(owner, entry_id, 0.0, position) for (position,) in rows])
        if self._connection.execute(f"DELETE {place}", values).rowcount == 0:
            return False
        self._blobs.delete_references(conversation_id, item_key(item_id))
        return True

    def _lock_conversation(self, owner: str, conversation_id: str) -> bool:
        """Keeps other servers from deleting a conversation until the commit. Returns whether it exists."""
        statement = "UPDATE conversations SET created = created WHERE owner = ? AND id = ?"
        return self._connection.execute(statement, (owner, conversation_id)).rowcount == 1

    def find_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        """Returns the owner's conversation with this id."""
        query = "SELECT created, metadata FROM conversations WHERE owner = ? AND id = ?"
        row = self._connection.execute(query, (owner, conversation_id)).fetchone()
        if row is None:
            return None
        return StoredConversation(id=conversation_id, created_at=row[0], metadata=msgspec.json.decode(row[1]))

    def load_items(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """Returns the items of a conversation, in order."""
        query = """
            SELECT position, data FROM conversation_items
            WHERE owner = ? AND conversation = ? AND position > ? ORDER BY position LIMIT ?
        """
        items: list[AnyInput] = []
        position, is_complete = -1, False
        while not is_complete:
            rows = self._connection.execute(query, (owner, conversation_id, position, ITEMS_PER_QUERY)).fetchall()
            is_complete = len(rows) < ITEMS_PER_QUERY
            position = rows[-1][0] if rows else position
            items += (item for _, data in rows if (item := _decode_item(conversation_id, data)) is not None)
        return tuple(items)

    def count_items(self, owner: str, conversation_id: str) -> tuple[int, int]:
        """Returns the number of items of a conversation, and their size in bytes."""
        query = """
            SELECT count(*), coalesce(sum(length(data)), 0) FROM conversation_items WHERE owner = ? AND conversation = ?
        """
        num_items, num_bytes = self._connection.execute(query, (owner, conversation_id)).fetchone()
        return int(num_items), int(num_bytes)

    def count_bytes(self, owner: str | None) -> int:
        """Returns the size of the conversations of an owner, or of all, with their pictures and files."""
        return self.count_row_bytes(owner) + self._blobs.count_other_bytes(owner)

    def count_row_bytes(self, owner: str | None) -> int:
        """Returns the size of the conversations of an owner, or of all, without their pictures and files.

        Each conversation and each item counts `ITEM_ROW_BYTES` more, so that the number of empty ones is limited, too.
        """
        place, values = ("WHERE owner = ?", (owner,)) if owner is not None else ("", ())
        parts = (
            (f"SELECT coalesce(sum(length(data) + {ITEM_ROW_BYTES}), 0) FROM conversation_items {place}", values),  # noqa: S608
            (f"SELECT coalesce(sum(length(metadata) + {ITEM_ROW_BYTES}), 0) FROM conversations {place}", values),  # noqa: S608
        )
        rows = (self._connection.execute(query, parameters).fetchone() for query, parameters in parts)
        return sum(int(num_bytes) for (num_bytes,) in rows)

    def load_page(
        self, owner: str, conversation_id: str, after: str | None, limit: int, *, descending: bool
    ) -> ItemPage | None:
        """Returns at most `limit` items behind the one with the id `after`; None if the conversation had no such item.

        The page ends before `MAX_PAGE_BYTES`, but has an item if there is one.
        """
        order, comparison = ("DESC", "<") if descending else ("ASC", ">")
        place, values = "owner = ? AND conversation = ?", list[Any]([owner, conversation_id])
        if after is not None:
            query = f"SELECT 0, position FROM conversation_items WHERE {place} AND id = ? ORDER BY position {order}"  # noqa: S608
            row = self._connection.execute(query, (*values, after)).fetchone()
            entry_id = _entry_id(conversation_id, after)
            row = row or self._deleted.find_deleted("conversation_items", owner, entry_id, descending=descending)
            if row is None:
                return None
            place, values = f"{place} AND position {comparison} ?", [*values, row[1]]
        query = f"SELECT position, length(data) FROM conversation_items WHERE {place} ORDER BY position {order} LIMIT ?"  # noqa: S608
        rows = self._connection.execute(query, (*values, limit + 1)).fetchall()
        num_rows, num_bytes = 0, 0
        while num_rows < min(len(rows), limit) and (not num_rows or num_bytes + rows[num_rows][1] <= MAX_PAGE_BYTES):
            num_bytes += rows[num_rows][1]
            num_rows += 1
        query = f"SELECT data FROM conversation_items WHERE {place} ORDER BY position {order} LIMIT ?"  # noqa: S608
        found = self._connection.execute(query, (*values, num_rows)).fetchall() if num_rows else []
        items = tuple(item for (data,) in found if (item := _decode_item(conversation_id, data)) is not None)
        return ItemPage(items, has_more=num_rows < len(rows))

    def find_item(self, owner: str, item_id: str, conversation_id: str | None = None) -> AnyInput | None:
        """Returns an item of one of the owner's conversations, by id."""
        query, values = "SELECT data FROM conversation_items WHERE owner = ? AND id = ?", [owner, item_id]
        if conversation_id is not None:
            query, values = f"{query} AND conversation = ? ORDER BY position", [*values, conversation_id]
        row = self._connection.execute(query, values).fetchone()
        return decode_row(_item_decoder.decode, row[0]) if row else None


def _entry_id(conversation_id: str, item_id: str) -> str:
    """Returns the id of an item among those of all conversations."""
    return f"{conversation_id}/{item_id}"


def _decode_item(conversation_id: str, data: bytes) -> AnyInput | None:
    """Returns an item; None, with a line in the log, if it was damaged."""
    try:
        item: AnyInput = decode_row(_item_decoder.decode, data)
    except UnreadableRowError as error:
        _log.error("conversation item is unreadable", conversation=conversation_id, error=str(error))
        return None
    return item
