"""SQL statements of the tables of records, as methods of one connection.

A record has a row in `turn_records`. Its prompts and grammars are in `prompt_blocks`, each block once, with the number
of its uses by records. A transaction changes its blocks at its end, in the order of their keys, so two servers never
wait for each other.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import zstandard

from antiphon.app.inspection.prompt_blocks import BLOCK_KEY_BYTES, compress, decompress
from antiphon.app.store.sql_connection import (
    SqlConnection,
    UnreadableRowError,
    insert_rows,
    split_rows,
    write_marks,
)
from antiphon.app.turn_types.continuation import RecordBlock, RecordRow

_BLOCK_COLUMNS = ("key", "size", "data", "uses")
_ADD_USES = "ON CONFLICT (key) DO UPDATE SET uses = prompt_blocks.uses + excluded.uses"


class RecordTables:
    """Statements on records. The writes are called inside a transaction, which ends with `write_blocks`."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection
        self._uses: Counter[bytes] = Counter()
        """By how much the current transaction changes the number of uses of each block."""
        self._new_blocks: dict[bytes, RecordBlock] = {}

    # Writes

    def forget_changes(self) -> None:
        """Begins a transaction, which has changed no block."""
        self._uses.clear()
        self._new_blocks.clear()

    def insert(self, owner: str, turn_id: str, row: RecordRow) -> bool:
        """Inserts the record of a turn. Returns False if there is one."""
        keys = b"".join(block.key for block in row.blocks)
        statement = "INSERT INTO turn_records (id, owner, data, blocks) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        if self._connection.execute(statement, (turn_id, owner, row.data, keys)).rowcount != 1:
            return False
        self._uses.update(block.key for block in row.blocks)
        self._new_blocks.update((block.key, block) for block in row.blocks)
        return True

    def delete(self, turn_id: str) -> int:
        """Deletes the record of a turn, if there is one. Returns the size of the blocks that nothing else uses."""
        row = self._connection.execute("SELECT blocks FROM turn_records WHERE id = ?", (turn_id,)).fetchone()
        if row is None:
            return 0
        self._connection.execute("DELETE FROM turn_records WHERE id = ?", (turn_id,))
        released = Counter(_split_keys(row[0]))
        self._uses.subtract(released)
        sizes = self._select(sorted(released), "key, uses, size")
        return sum(size for key, uses, size in sizes if uses + self._uses[bytes(key)] <= 0)

    def write_blocks(self) -> None:
        """Writes the blocks of the records that the transaction has inserted, and frees those of the deleted ones."""
        changes = {key: self._uses[key] for key in sorted(self._uses) if self._uses[key]}
        if not changes:
            return
        existing = self._select_keys([*changes])
        for part in split_rows([*changes]):
            self._change_uses({key: changes[key] for key in part}, existing)
        # Another server may have freed a block since it was looked for. From now on, this transaction has locked it.
        for key in self._select_keys([key for key in existing if changes[key] > 0], "AND size = 0"):
            data = compress(self._new_blocks[key].data)
            self._connection.execute(
                "UPDATE prompt_blocks SET size = ?, data = ? WHERE key = ?", (len(data), data, key)
            )
        for part in split_rows([key for key in changes if changes[key] < 0]):
            statement = f"DELETE FROM prompt_blocks WHERE uses <= 0 AND key IN ({write_marks(len(part))})"  # noqa: S608
            self._connection.execute(statement, part)
        self.forget_changes()

    def _change_uses(self, changes: dict[bytes, int], existing: set[bytes]) -> None:
        """Changes the uses of blocks, and inserts those that did not exist; the others without their data."""
        rows = []
        for key, number in changes.items():
            data = b"" if key in existing or number < 0 else compress(self._new_blocks[key].data)
            rows.append((key, len(data), data, number))
        insert_rows(self._connection, "prompt_blocks", _BLOCK_COLUMNS, rows, _ADD_USES)

    # Reads

    def find(self, owner: str, turn_id: str) -> RecordRow | None:
        """Returns the record of the owner's turn; None if there is none. Raises `UnreadableRowError`."""
        query = "SELECT data, blocks FROM turn_records WHERE id = ? AND owner = ?"
        row = self._connection.execute(query, (turn_id, owner)).fetchone()
        if row is None:
            return None
        keys = _split_keys(row[1])
        found = {bytes(key): data for key, data in self._select(sorted(set(keys)), "key, data")}
        try:
            return RecordRow(bytes(row[0]), tuple(RecordBlock(key, decompress(found[key])) for key in keys))
        except (KeyError, TypeError, zstandard.ZstdError) as error:
            raise UnreadableRowError(f"block {error}") from None

    def list_data(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Returns the records of some of the owner's turns by their ids, without their blocks."""
        found: dict[str, bytes] = {}
        for part in split_rows(ids):
            query = f"SELECT id, data FROM turn_records WHERE owner = ? AND id IN ({write_marks(len(part))})"  # noqa: S608
            found.update((row[0], bytes(row[1])) for row in self._connection.execute(query, (owner, *part)))
        return found

    def count_bytes(self) -> int:
        """Returns the size of all blocks."""
        return int(self._connection.execute("SELECT coalesce(sum(size), 0) FROM prompt_blocks").fetchone()[0])

    def _select_keys(self, keys: Sequence[bytes], condition: str = "") -> set[bytes]:
        return {bytes(row[0]) for row in self._select(keys, "key", condition)}

    def _select(self, keys: Sequence[bytes], columns: str, condition: str = "") -> list[Any]:
        rows: list[Any] = []
        for part in split_rows(keys):
            query = f"SELECT {columns} FROM prompt_blocks WHERE key IN ({write_marks(len(part))}) {condition}"  # noqa: S608
            rows += self._connection.execute(query, part).fetchall()
        return rows


def _split_keys(data: bytes) -> list[bytes]:
    return [bytes(data[start : start + BLOCK_KEY_BYTES]) for start in range(0, len(data), BLOCK_KEY_BYTES)]
