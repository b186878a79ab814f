"""Places of entries that were deleted: a client that deletes while it pages continues behind the last one it has seen.

There is no row for an entry that exists: a list looks for the row of the entry first, then here. Rows have digests of
ids, since clients choose those of items. The database sets the time of a deletion.
"""

from collections.abc import Iterable
from typing import Literal

from antiphon.app.store.blobs.blob_tables import item_key
from antiphon.app.store.sql_connection import SqlConnection, insert_rows, split_rows

DELETED_ENTRY_LIFETIME_S = 86_400
"""Time for which the place of a deleted entry is known."""
MAX_DELETED_ENTRIES = 10_000
"""Deleted entries of an owner whose places are kept: the latest ones."""
_COLUMNS = ("list", "owner", "entry", "created", "position")
ListTable = Literal["files", "batches", "chat_completions", "conversation_items", "turn_summaries"]
"""Tables whose rows are entries of a list."""
TimedTable = Literal["files", "batches", "chat_completions"]
"""Tables whose rows have the time of an entry and its position in the list."""
Entry = tuple[str, str, float, int]
"""Owner and id of an entry, its time and its position."""
EntryPlace = tuple[float, int]
"""Time and position of an entry; a list is sorted by one of them or both."""


class DeletedEntries:
    """Statements on deleted entries. The writes are called inside the transaction that deletes the entries."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection

    def record(self, table: ListTable, entries: Iterable[Entry]) -> None:
        """Keeps the places of entries of a table that are being deleted."""
        rows = [(table, owner, item_key(entry_id), time, position) for owner, entry_id, time, position in entries]
        for part in split_rows(rows):
            insert_rows(self._connection, "deleted_entries", _COLUMNS, part)

    def find_place(
        self, table: TimedTable, owner: str, entry_id: str, *, descending: bool, condition: str = "1 = 1"
    ) -> EntryPlace | None:
        """Returns the place of the owner's entry with a condition on its row, or of one that was deleted."""
        query = f"SELECT created, position FROM {table} WHERE owner = ? AND id = ? AND {condition}"  # noqa: S608
        row: EntryPlace | None = self._connection.execute(query, (owner, entry_id)).fetchone()
        return row or self.find_deleted(table, owner, entry_id, descending=descending)

    def find_deleted(self, table: ListTable, owner: str, entry_id: str, *, descending: bool) -> EntryPlace | None:
        """Returns the place of the owner's deleted entry. Of several with one id, the first one in the order counts."""
        query = f"""
            SELECT created, position FROM deleted_entries WHERE owner = ? AND list = ? AND entry = ?
            ORDER BY position {"DESC" if descending else "ASC"} LIMIT 1
        """  # noqa: S608
        row = self._connection.execute(query, (owner, table, item_key(entry_id))).fetchone()
        return None if row is None else (row[0], row[1])

    def delete_old(self, now: float) -> None:
        """Deletes the places that are too old, and the oldest ones of an owner that has too many."""
        self._connection.execute(
            "DELETE FROM deleted_entries WHERE deleted < ?", (int(now) - DELETED_ENTRY_LIFETIME_S,)
        )
        query = "SELECT owner FROM deleted_entries GROUP BY owner HAVING count(*) > ?"
        statement = """
            DELETE FROM deleted_entries WHERE owner = ? AND number <= (
                SELECT number FROM deleted_entries WHERE owner = ? ORDER BY number DESC LIMIT 1 OFFSET ?
            )
        """
        for (owner,) in self._connection.execute(query, (MAX_DELETED_ENTRIES,)).fetchall():
            self._connection.execute(statement, (owner, owner, MAX_DELETED_ENTRIES))
