"""Reads of the events of responses, on a connection that any thread may use, and word to their writers."""

from collections.abc import Iterator, Sequence

import msgspec
import structlog
from msgspec import Struct

from antiphon.app.store.sql_connection import SqlConnection, UnreadableRowError, decode_row
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.app.turn_types.step_detail import TokenDetail
from antiphon.events import stream as ev
from antiphon.events.response import Response

_response_decoder = msgspec.json.Decoder(Response)
_detail_decoder = msgspec.msgpack.Decoder(TokenDetail)
MARK_WANTED = "UPDATE responses SET wanted = 1 WHERE id = ? AND writer IS NOT NULL AND wanted = 0"
"""Records that a response is read by another process than its writer."""
_log = structlog.get_logger(__name__)


class StoredNews(Struct, frozen=True):
    """The next events of a response that another process writes. Without a writer it has ended, or was deleted."""

    entries: Sequence[LogEntry]
    has_writer: bool
    is_readable: bool = True
    """False if an event that follows is damaged: readers get no more."""


class EventTables:
    """Statements on one connection."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection

    def iterate_entries(self, response_id: str, start: int = 0) -> Iterator[LogEntry]:
        """Yields the log entries from sequence number `start` on. Raises `UnreadableRowError`, also at a gap."""
        query = "SELECT data, detail, journal FROM events WHERE response = ? AND number >= ? ORDER BY number"
        for number, row in enumerate(self._connection.execute(query, (response_id, start)), start):
            data, encoded, journal = row
            event = decode_row(ev.decode_event, data)
            if event.sequence_number != number:
                raise UnreadableRowError(f"event {number} is missing")
            detail = None if encoded is None else decode_row(_detail_decoder.decode, encoded)
            yield LogEntry(event, data, detail, b"" if journal is None else journal)

    def mark_wanted(self, response_id: str) -> None:
        """Tells the writer of a response that it is read here."""
        self._connection.execute(MARK_WANTED, (response_id,))

    def is_cancel_requested(self, response_id: str) -> bool:
        """Tells whether the cancellation of a response was requested."""
        query = "SELECT cancel_requested FROM responses WHERE id = ?"
        row = self._connection.execute(query, (response_id,)).fetchone()
        return bool(row and row[0])

    def load_news(self, response_id: str, start: int) -> StoredNews:
        """Returns the events of a response from sequence number `start` on, and whether there can be more."""
        query = "SELECT writer FROM responses WHERE id = ?"
        row = self._connection.execute(query, (response_id,)).fetchone()  # first: once it has ended, it does not grow
        try:
            return StoredNews(list(self.iterate_entries(response_id, start)), bool(row and row[0]))
        except UnreadableRowError as error:
            _log.error("stored response is unreadable", response=response_id, error=str(error))
            return StoredNews((), has_writer=False, is_readable=False)

    def find_readable_part(self, owner: str, response_id: str) -> tuple[EventLog, str] | None:
        """Returns the log of the owner's response up to its first damage, and what that is; empty if there is none.

        Returns None if the owner has no such response, or if its row is damaged.
        """
        query = "SELECT base_response FROM responses WHERE id = ? AND owner = ?"
        row = self._connection.execute(query, (response_id, owner)).fetchone()
        if row is None:
            return None
        damage = ""
        try:
            log = EventLog(decode_row(_response_decoder.decode, row[0]), owner)
        except UnreadableRowError:
            return None
        try:
            for entry in self.iterate_entries(response_id):
                log.add_stored([entry])
        except UnreadableRowError as error:
            damage = str(error)
        log.end_log()
        return log, damage
