"""The stores in one SQLite file, whose responses of another process are polled for new events, and in memory."""

import asyncio
import sqlite3
from contextlib import ExitStack, closing
from math import inf
from pathlib import Path

import structlog

from antiphon.app.store.sqlite.database import MemoryDatabase, SharedConnection, SqliteDatabase
from antiphon.app.store.sqlite.quarantine import quarantine_if_corrupt
from antiphon.app.store.sqlite.schema import open_connection
from antiphon.app.store.store import ResponseStore
from antiphon.app.store.writing import writer_lease
from antiphon.app.store.writing.write_ops import StoreTimings
from antiphon.app.turn_types.event_log import EventLog

FILE_POLL_INTERVAL_S = 0.05
"""Seconds between two polls for events that another process has written."""
READ_RETRY_S = 1.0
"""Seconds until the next poll after one that failed."""
_log = structlog.get_logger(__name__)

MAX_MEMORY_RESPONSES = 10_000
MAX_MEMORY_BYTES = 512 * 2**20
"""Limits of a store in memory, where nothing expires. It may exceed them for one interval of `MEMORY_TIMINGS`."""
MEMORY_TIMINGS = StoreTimings(heartbeat_s=0.25, sweep_interval_s=0.25, retention_s=inf)


class MemoryStore(ResponseStore):
    """Stores at most `max_responses`, of at most `max_bytes`, until it is closed. The oldest are deleted first."""

    def __init__(self, *, max_responses: int = MAX_MEMORY_RESPONSES, max_bytes: int = MAX_MEMORY_BYTES) -> None:
        database = MemoryDatabase(max_responses)
        super().__init__(writer_lease.create_name(), (database, database, database), MEMORY_TIMINGS, max_bytes)

    def _follow_remote(self, log: EventLog) -> None:
        """Does nothing: no other process writes to the memory of this one."""


class SqliteStore(ResponseStore):
    """Stores logs in the file `path`. Must be closed."""

    def __init__(self, path: Path, *, timings: StoreTimings = StoreTimings(), max_bytes: int = 4 * 2**30) -> None:  # noqa: B008  # it is frozen
        quarantine_if_corrupt(path)
        self._polls: set[asyncio.Task[None]] = set()
        with ExitStack() as undo:
            connections = (open_connection(path), open_connection(path))
            written, reads = (undo.enter_context(closing(SqliteDatabase(each))) for each in connections)
            # Several threads read the history at once.
            history = undo.enter_context(closing(SqliteDatabase(SharedConnection(open_connection(path)))))
            super().__init__(writer_lease.create_name(), (written, reads, history), timings, max_bytes)
            undo.pop_all()

    async def close(self) -> None:
        """Writes everything that is pending and closes the file."""
        for task in self._polls:
            task.cancel()
        await super().close()

    def _follow_remote(self, log: EventLog) -> None:
        self._logs.enqueue_change(lambda database: database.events.mark_wanted(log.id))
        task = asyncio.create_task(self._poll_remote(log), name=f"poll-remote-{log.id}")
        self._polls.add(task)
        task.add_done_callback(self._polls.discard)

    async def _poll_remote(self, log: EventLog) -> None:
        """Reads the events that another process writes, until the response has ended or was deleted."""
        while not log.ended:
            await asyncio.sleep(FILE_POLL_INTERVAL_S)
            try:
                news = self._database.events.load_news(log.id, len(log.entries))
            except sqlite3.Error as error:  # the readers wait until the file can be read again
                _log.warning("reading from another server was interrupted", response=log.id, error=str(error))
                await asyncio.sleep(READ_RETRY_S)
                continue
            self._logs.on_remote_news(log, news)
