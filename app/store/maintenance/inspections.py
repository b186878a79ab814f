"""Checks of a store's content, and sizes by owner, age and kind."""

from collections.abc import Iterator

from msgspec import Struct

from antiphon.app.store.sql_connection import SqlConnection

AGES_DAYS = (1, 7, 30)
"""Ages that sizes are shown by."""
DAY_S = 86_400
"""Length of a day."""
MAX_EXAMPLES = 3


class StoreFault(Struct, frozen=True):
    """Rows of a store that do not fit together."""

    what: str
    count: int
    examples: tuple[str, ...] = ()


class OwnerSize(Struct):
    """Sizes of the responses, images and files of an owner."""

    owner: str
    responses: int = 0
    response_bytes: int = 0
    blob_bytes: int = 0
    file_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all kinds."""
        return self.response_bytes + self.blob_bytes + self.file_bytes


_CHECKS = {
    "responses whose events have a gap": """
        SELECT response FROM events GROUP BY response
        HAVING min(number) <> 0 OR max(number) <> count(*) - 1
    """,
    "ended responses without events": """
        SELECT id FROM responses WHERE writer IS NULL AND NOT EXISTS (SELECT 1 FROM events WHERE response = id)
    """,
    "events without their response": """
        SELECT DISTINCT response FROM events WHERE NOT EXISTS (SELECT 1 FROM responses WHERE id = response)
    """,
    "choices without their chat completion": """
        SELECT response FROM chat_choices c WHERE NOT EXISTS
        (SELECT 1 FROM chat_completions t WHERE t.id = c.completion)
    """,
    "blobs that nothing refers to": """
        SELECT owner FROM blobs b WHERE NOT EXISTS
        (SELECT 1 FROM blob_references r WHERE r.owner = b.owner AND r.sha256 = b.sha256)
    """,
    "references to missing blobs": """
        SELECT owner FROM blob_references r WHERE NOT EXISTS
        (SELECT 1 FROM blobs b WHERE b.owner = r.owner AND b.sha256 = r.sha256)
    """,
    "pieces of missing blobs": """
        SELECT DISTINCT owner FROM blob_pieces p WHERE NOT EXISTS
        (SELECT 1 FROM blobs b WHERE b.owner = p.owner AND b.sha256 = p.sha256)
    """,
    "summaries without their response": """
        SELECT id FROM turn_summaries s WHERE NOT EXISTS (SELECT 1 FROM responses r WHERE r.id = s.id)
    """,
    "records without their response": """
        SELECT id FROM turn_records t WHERE NOT EXISTS (SELECT 1 FROM responses r WHERE r.id = t.id)
    """,
}
"""Queries of rows that must not exist, which return an id of each."""


def check_pages(connection: SqlConnection) -> list[str]:
    """Returns what SQLite finds wrong with the pages of a file."""
    rows = connection.execute("PRAGMA integrity_check").fetchall()
    return [str(row[0]) for row in rows if row[0] != "ok"]


def find_faults(connection: SqlConnection) -> Iterator[StoreFault]:
    """Yields what does not fit together. In one transaction, rows that are written together are seen together."""
    for what, query in _CHECKS.items():
        count = connection.execute(f"SELECT count(*) FROM ({query}) AS found").fetchone()[0]  # noqa: S608
        if count:
            rows = connection.execute(f"{query} LIMIT {MAX_EXAMPLES}").fetchall()
            yield StoreFault(what, int(count), tuple(str(row[0]) for row in rows))


def measure_owners(connection: SqlConnection) -> list[OwnerSize]:
    """Returns what each owner has, those with most bytes first."""
    sizes: dict[str, OwnerSize] = {}
    for owner, count, num_bytes in connection.execute(
        "SELECT owner, count(*), coalesce(sum(size), 0) FROM responses GROUP BY owner"
    ):
        size = sizes.setdefault(owner, OwnerSize(owner))
        size.responses, size.response_bytes = int(count), int(num_bytes)
    for owner, num_bytes in connection.execute("SELECT owner, sum(size) FROM blobs GROUP BY owner"):
        sizes.setdefault(owner, OwnerSize(owner)).blob_bytes = int(num_bytes)
    for owner, num_bytes in connection.execute("SELECT owner, sum(size) FROM files GROUP BY owner"):
        sizes.setdefault(owner, OwnerSize(owner)).file_bytes = int(num_bytes)
    return sorted(sizes.values(), key=lambda size: (-size.num_bytes, size.owner))


def count_by_age(connection: SqlConnection, now: float) -> list[tuple[str, int, int]]:
    """Returns the number and the bytes of responses that are younger than each age, and of all others."""
    found, newest = [], float("inf")
    for days in (*AGES_DAYS, None):
        oldest = 0 if days is None else int(now) - days * DAY_S
        values = (oldest, 2**62 if newest == float("inf") else int(newest))
        query = "SELECT count(*), coalesce(sum(size), 0) FROM responses WHERE created >= ? AND created < ?"
        count, num_bytes = connection.execute(query, values).fetchone()
        found.append(("older" if days is None else f"up to {days} days", int(count), int(num_bytes)))
        newest = oldest
    return found
