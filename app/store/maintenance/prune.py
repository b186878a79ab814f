"""Deletes responses by age and owner, in short transactions beside the servers of a store."""

from typing import Any

from antiphon.app.store.completion_tables import FREE_OF_RUNNING_CHOICES
from antiphon.app.store.database import Database
from antiphon.app.store.sql_connection import SqlConnection

DELETES_PER_TRANSACTION = 100
"""Responses deleted in one transaction, for which the steps of running responses wait."""


def prune_responses(
    database: Database, connection: SqlConnection, before: int | None, owner: str | None, *, dry_run: bool
) -> int:
    """Deletes responses that have ended: those created before a time (seconds since 1970), and those of one owner.

    Returns their number; with `dry_run`, the number of those that would be deleted.
    """
    conditions, values = [f"writer IS NULL AND {FREE_OF_RUNNING_CHOICES}"], list[Any]()
    if before is not None:
        conditions.append("created < ?")
        values.append(before)
    if owner is not None:
        conditions.append("owner = ?")
        values.append(owner)
    condition = " AND ".join(conditions)
    if dry_run:
        query = f"SELECT count(*) FROM responses WHERE {condition}"  # noqa: S608
        return int(connection.execute(query, values).fetchone()[0])
    query = f"SELECT id FROM responses WHERE {condition} ORDER BY created LIMIT ?"  # noqa: S608
    num_deleted = 0
    while True:
        database.begin(sync=False)
        ids = [row[0] for row in connection.execute(query, (*values, DELETES_PER_TRANSACTION)).fetchall()]
        for response_id in ids:
            database.delete_response(response_id)
        database.commit()
        num_deleted += len(ids)
        if len(ids) < DELETES_PER_TRANSACTION:
            return num_deleted
