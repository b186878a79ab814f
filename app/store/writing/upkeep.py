"""Upkeep of the database: ends or takes over what dead processes left, and deletes rows that are not needed any more.

Each step is a short transaction of its own, since it keeps the steps of responses waiting.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from antiphon.app.store.base import ClaimedResponse
from antiphon.app.store.database import NO_OWNER_LIMITS, Database
from antiphon.app.store.history.continuation_tables import MAX_CONTINUATIONS
from antiphon.app.turn_types.tool_rules import MAX_APPROVAL_AGE_S

MAX_PURGED_PIECES = 16
"""Pieces of deleted files, each of 1 MiB, to delete in one transaction."""
MAX_PURGED_LINES = 1000
"""Lines of ended batches to delete in one transaction."""
UPLOAD_RECORD_S = 86_400
"""Time for which an upload is known after it could take its last part."""
WRITER_LIFETIME_S = 86_400
"""Age at which the row of a server that was killed is deleted."""
USAGE_RETENTION_S = 400 * 86_400
"""Age at which the sums of an hour are deleted."""
MAX_CLOCK_DIFFERENCE_S = 86_400
"""Time for which the record of a used approval is kept after the approval has expired by this server's clock."""


class StoreUpkeep:
    """Upkeep by the writer `name`. `is_alive` receives the name of a writer and its latest heartbeat."""

    def __init__(
        self,
        database: Database,
        name: str,
        is_alive: Callable[[str, float], bool],
        on_claimed: Callable[[ClaimedResponse], None] = lambda _: None,
    ) -> None:
        self._database, self._name, self._is_alive, self._on_claimed = database, name, is_alive, on_claimed
        self.digests: Mapping[str, str] | None = None
        """Digests of the models here by their names; None as long as they are not known."""
        self.continue_within_s = 0.0
        self._left_at: dict[str, float] = {}
        """Time at which a response was first left to other processes, by its id."""

    def claim_responses(self) -> None:
        """Claims the responses of dead processes, to continue them or to end them, or leaves them to others."""
        orphans = self._database.list_orphaned(self._is_alive)
        found = {response_id: self._database.continuations.find(response_id) for _, response_id, _ in orphans}
        self._left_at = {response_id: at for response_id, at in self._left_at.items() if response_id in found}
        orphans.sort(key=lambda orphan: (row := found[orphan[1]]) is not None and row.position)
        for owner, response_id, writer in orphans:
            row = found[response_id]
            if row is None or row.attempts >= MAX_CONTINUATIONS:
                self._claim_orphan(ClaimedResponse(owner, response_id), writer)
            elif self.digests is not None and self.digests.get(row.content.model) == row.content.digest:
                self._claim_orphan(ClaimedResponse(owner, response_id, row.content), writer)
            elif not self._is_left_to_others(response_id):
                self._claim_orphan(ClaimedResponse(owner, response_id), writer)

    def _is_left_to_others(self, response_id: str) -> bool:
        """Tells whether another process may still continue a response, or this one once its models are known."""
        now = time.monotonic()
        return self.digests is None or now - self._left_at.setdefault(response_id, now) < self.continue_within_s

    def _claim_orphan(self, claimed: ClaimedResponse, writer: str) -> None:
        """Takes a response over, unless another process has done so, and passes it on.

        Its log is read elsewhere: a long one would keep the steps of all responses waiting.
        """
        self._database.begin(sync=True)
        is_taken = self._database.take_over(claimed.id, writer, self._name)
        if is_taken and claimed.continuation is not None:
            self._database.continuations.count_attempt(claimed.id)
        self._database.commit()
        if is_taken:
            self._on_claimed(claimed)

    def claim_batches(self, *, with_batches: bool) -> None:
        """Takes over the batches of dead processes, and deletes the files that they have not completed."""
        batches = self._database.list_orphaned(self._is_alive, "batches") if with_batches else []
        files = self._database.list_orphaned(self._is_alive, "files")
        if not batches and not files:
            return
        self._database.begin(sync=True)
        for _, batch_id, writer in batches:
            self._database.take_over(batch_id, writer, self._name, "batches")
        for _, file_id, writer in files:
            if self._database.take_over(file_id, writer, self._name, "files"):
                self._database.files.delete_file(file_id)
        self._database.commit()

    def delete_writers(self, writers: Sequence[tuple[str, float, str]]) -> None:
        """Deletes those of the writers that are dead and whose heartbeats are a day away from this server's clock."""
        now = time.time()
        old = [(name, heartbeat) for name, heartbeat, _ in writers if abs(now - heartbeat) > WRITER_LIFETIME_S]
        if names := [name for name, heartbeat in old if not self._is_alive(name, heartbeat)]:
            self._database.begin(sync=False)
            for name in names:
                self._database.delete_writer(name)
            self._database.commit()

    def purge_rows(self) -> None:
        """Deletes some rows of files that were deleted, and of batches that have ended."""
        files, batches = self._database.files, self._database.batches
        if not files.has_deleted() and not batches.has_old_lines():
            return
        self._database.begin(sync=False)
        files.purge_pieces(MAX_PURGED_PIECES)
        batches.purge_lines(MAX_PURGED_LINES)
        self._database.commit()

    def delete_expired(
        self, now: float, retention_s: float, max_bytes: int, owner_bytes: Mapping[str, int] = NO_OWNER_LIMITS
    ) -> bool:
        """Deletes responses, files and batches older than `retention_s`, excess responses, and what has expired.

        Also deletes the records of used approvals that have expired, which no request can use again, and the places
        of entries that were deleted long ago. Returns whether no responses are left to delete.
        """
        oldest = int(max(now - retention_s, 0))
        self._database.begin(sync=False)
        is_done = self._database.delete_expired(oldest, max_bytes, owner_bytes)
        self._database.files.delete_expired(now)
        self._database.files.delete_older(oldest)
        self._database.uploads.delete_expired(now - UPLOAD_RECORD_S)
        self._database.batches.delete_expired(oldest)
        self._database.usage.delete_before(int(now - USAGE_RETENTION_S))
        self._database.delete_used_approvals(now - MAX_APPROVAL_AGE_S - MAX_CLOCK_DIFFERENCE_S)
        self._database.deleted_entries.delete_old(now)
        self._database.commit()
        return is_done
