"""Deletes responses, so that the store stays within its limits: the oldest ones of the owner with the largest share."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from antiphon.app.store.completion_tables import FREE_OF_RUNNING_CHOICES
from antiphon.app.store.sql_connection import SqlConnection

MAX_DELETES_PER_TRANSACTION = 200
"""Responses deleted in one transaction. The limit keeps it short, since it blocks all other writes."""
MAX_DELETED_BLOB_BYTES = 256 << 20
"""Bytes of blobs after whose deletion a transaction deletes no more responses."""
_FINISHED = f"FROM responses WHERE writer IS NULL AND {FREE_OF_RUNNING_CHOICES}"
OldestResponses = list[tuple[str, int]]
"""Ids and sizes of responses, the newest first: the oldest one is taken from the end."""


class StoreLimits(Struct, frozen=True):
    """Limits of the store: it keeps responses created at `oldest` or later, the newest that fit the other limits."""

    oldest: int
    max_bytes: int
    max_responses: float
    owner_bytes: Mapping[str, int] = {}
    """Limits of some owners, for their responses and blobs."""


class OwnerShare(Struct):
    """Share of an owner in the store. `oldest` is None until it is read, and empty when none can be deleted."""

    num_responses: int = 0
    num_bytes: int = 0
    """Size of responses and blobs."""
    oldest: OldestResponses | None = None


class Evictions:
    """Deletions of one transaction, which is short: it may leave some for the next.

    `delete` deletes a response, and returns the size of the blobs that went with it.
    """

    def __init__(self, connection: SqlConnection, limits: StoreLimits, delete: Callable[[str], int]) -> None:
        self._connection, self._limits, self._delete = connection, limits, delete
        self._num_deleted = self._blob_bytes = 0

    def run(self, other_bytes: int) -> bool:
        """Deletes responses that are too old, then those above a limit. Returns whether none is left to delete.

        `other_bytes` is the size of all blobs, and of all else that counts.
        """
        query = f"SELECT id {_FINISHED} AND created < ? ORDER BY created LIMIT ?"
        values = (self._limits.oldest, MAX_DELETES_PER_TRANSACTION)
        for (response_id,) in self._connection.execute(query, values).fetchall():
            if not self._has_room():
                return False
            self._delete_response(response_id)
        totals = "SELECT count(*), coalesce(sum(size), 0) FROM responses"
        num_left, num_bytes = self._connection.execute(totals).fetchone()
        num_bytes += other_bytes - self._blob_bytes
        if not self._limits.owner_bytes and self._fits(num_left, num_bytes):
            return self._has_room()
        shares = self._load_shares()
        for owner, max_bytes in self._limits.owner_bytes.items():
            share = shares.get(owner, OwnerShare())
            while share.num_bytes > max_bytes and self._has_room():
                freed = self._delete_oldest(owner, share)
                if freed is None:
                    break
                num_left, num_bytes = num_left - 1, num_bytes - freed
        while shares and not self._fits(num_left, num_bytes) and self._has_room():
            owner = self._find_largest(shares, by_bytes=num_bytes > self._limits.max_bytes)
            freed = self._delete_oldest(owner, shares[owner])
            if freed is None:
                del shares[owner]
            else:
                num_left, num_bytes = num_left - 1, num_bytes - freed
        return self._has_room()

    def _fits(self, num_left: int, num_bytes: int) -> bool:
        return num_bytes <= self._limits.max_bytes and num_left <= self._limits.max_responses

    def _has_room(self) -> bool:
        """Tells whether the transaction may delete one more response."""
        return self._num_deleted < MAX_DELETES_PER_TRANSACTION and self._blob_bytes <= MAX_DELETED_BLOB_BYTES

    def _load_shares(self) -> dict[str, OwnerShare]:
        query = "SELECT owner, count(*), coalesce(sum(size), 0) FROM responses GROUP BY owner"
        shares = {
            owner: OwnerShare(int(count), int(size))
            for owner, count, size in self._connection.execute(query).fetchall()
        }
        for owner, size in self._connection.execute("SELECT owner, sum(size) FROM blobs GROUP BY owner").fetchall():
            if owner in shares:
                shares[owner].num_bytes += int(size)
        return shares

    @staticmethod
    def _find_largest(shares: Mapping[str, OwnerShare], *, by_bytes: bool) -> str:
        """Returns the owner with the largest share; of equal ones, the first by its name."""
        return min(
            shares, key=lambda owner: (-(shares[owner].num_bytes if by_bytes else shares[owner].num_responses), owner)
        )

    def _delete_oldest(self, owner: str, share: OwnerShare) -> int | None:
        """Deletes the oldest finished response of an owner. Returns the bytes that it freed; None if there is none."""
        if share.oldest is None:
            query = f"SELECT id, size {_FINISHED} AND owner = ? ORDER BY created LIMIT ?"
            rows = self._connection.execute(query, (owner, MAX_DELETES_PER_TRANSACTION)).fetchall()
            share.oldest = [(response_id, int(size)) for response_id, size in reversed(rows)]
        if not share.oldest:
            return None
        response_id, size = share.oldest.pop()
        freed = size + self._delete_response(response_id)
        share.num_responses, share.num_bytes = share.num_responses - 1, share.num_bytes - freed
        return freed

    def _delete_response(self, response_id: str) -> int:
        blob_bytes = self._delete(response_id)
        self._num_deleted, self._blob_bytes = self._num_deleted + 1, self._blob_bytes + blob_bytes
        return blob_bytes
