"""Deletes the oldest responses, so that the store stays within its limits."""

from collections.abc import Callable

from msgspec import Struct

from antiphon.app.store.completion_tables import FREE_OF_RUNNING_CHOICES
from antiphon.app.store.sql_connection import SqlConnection

MAX_DELETES_PER_TRANSACTION = 200
"""Responses deleted in one transaction. The limit keeps it short, since it blocks all other writes."""
MAX_DELETED_BLOB_BYTES = 256 << 20
"""Bytes of blobs after whose deletion a transaction deletes no more responses."""


class StoreLimits(Struct, frozen=True, kw_only=True):
    """Limits of the store: it keeps responses created at `oldest` or later, the newest that fit the other limits."""

    oldest: int
    max_bytes: int
    max_responses: float


def evict_responses(
    connection: SqlConnection, limits: StoreLimits, other_bytes: int, delete: Callable[[str], int]
) -> bool:
    """Deletes finished responses that are too old, then the oldest until the rest fits. Returns whether it is done.

    `delete` deletes a response, and returns the size of the blobs that went with it. `other_bytes` is the size of the
    blobs, and of all else that counts. The transaction is short: it may leave some for the next call.
    """
    totals = "SELECT count(*), coalesce(sum(size), 0) FROM responses"
    num_left, bytes_left = connection.execute(totals).fetchone()
    query = f"""
        SELECT id, created, size FROM responses WHERE writer IS NULL AND {FREE_OF_RUNNING_CHOICES}
        ORDER BY created LIMIT ?
    """  # noqa: S608
    num_deleted, blob_bytes = 0, 0
    for response_id, created, size in connection.execute(query, (MAX_DELETES_PER_TRANSACTION,)).fetchall():
        fits = bytes_left + other_bytes - blob_bytes <= limits.max_bytes and num_left <= limits.max_responses
        if created >= limits.oldest and fits:
            return True
        if blob_bytes > MAX_DELETED_BLOB_BYTES:
            return False
        blob_bytes += delete(response_id)
        num_deleted, num_left, bytes_left = num_deleted + 1, num_left - 1, bytes_left - size
    return num_deleted < MAX_DELETES_PER_TRANSACTION
