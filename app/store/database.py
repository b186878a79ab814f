"""The file: what is written where, as plain calls on one connection. It knows no thread, no log and no clock.

One row for each response, one for each event, one for each item, which is found by id. Rows of a response are written
by one process, whose name stands in `writer` until the response has ended; whoever writes checks that it still does.
Another process that wants a response to end says so in `asked`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from antiphon.app.event_log import EventLog, LogEntry, is_terminal
from antiphon.app.store.base import StoredConversation
from antiphon.app.store.schema import open_connection
from antiphon.events import stream as ev
from antiphon.events.inputs import AnyInput
from antiphon.events.response import Response

MAX_DELETES_PER_TRANSACTION = 200
"""Responses that are deleted in one transaction: meanwhile nobody else is written."""
_log = structlog.get_logger(__name__)
_response_decoder = msgspec.json.Decoder(Response)
_item_decoder = msgspec.json.Decoder[AnyInput](AnyInput)
_items_decoder = msgspec.json.Decoder(tuple[AnyInput, ...])


class LeaseLostError(Exception):
    """The response is another process's by now: this one was silent for too long."""


class Database:
    """A connection to the file. One thread at a time may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = open_connection(path)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def begin(self, *, sync: bool) -> None:
        """Begin to write. `sync`: what is written is on the medium when `commit` returns."""
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """What was written since `begin` is there, and others see it."""
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Nothing was written since `begin`."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction, on the medium when it is done."""
        self.begin(sync=True)
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    # Written within begin and commit

    def insert_response(self, log: EventLog, writer: str) -> None:
        """A response begins."""
        head, given = msgspec.json.encode(log.base_response), msgspec.json.encode(log.input_items)
        words = (
            "INSERT INTO responses (id, owner, created, base_response, input_items, writer) VALUES (?, ?, ?, ?, ?, ?)"
        )
        self._connection.execute(words, (log.id, log.owner, int(log.base_response.created_at), head, given, writer))
        self._insert_item_ids(log.owner, log.id, (item.id for item in log.input_items))

    def append_events(self, owner: str, response_id: str, frames: Sequence[LogEntry], writer: str) -> None:
        """A step of a response: all of it or nothing. Raises `LostError`."""
        if not self.owns(response_id, writer):
            raise LeaseLostError(response_id)
        rows = [(response_id, frame.event.sequence_number, frame.data) for frame in frames]
        self._connection.executemany("INSERT INTO events (response, number, data) VALUES (?, ?, ?)", rows)
        done = (frame.event.item.id for frame in frames if isinstance(frame.event, ev.ItemDone))
        self._insert_item_ids(owner, response_id, done)
        if is_terminal(frames):
            size = "(SELECT sum(length(data)) FROM events WHERE response = id)"
            self._connection.execute(f"UPDATE responses SET writer = NULL, size = {size} WHERE id = ?", (response_id,))  # noqa: S608

    def request_cancel(self, response_id: str) -> None:
        """Ask whoever writes a response to end it."""
        self._connection.execute(
            "UPDATE responses SET cancel_requested = 1 WHERE id = ? AND writer IS NOT NULL", (response_id,)
        )

    def count_events(self, response_id: str) -> int:
        """How many events of a response are there."""
        found: int = self._connection.execute(
            "SELECT count(*) FROM events WHERE response = ?", (response_id,)
        ).fetchone()[0]
        return found

    def owned_responses(self, writer: str) -> dict[str, bool]:
        """Responses that are this writer's, and of each whether it is asked to end it."""
        words = "SELECT id, cancel_requested FROM responses WHERE writer = ?"
        return {response_id: bool(asked) for response_id, asked in self._connection.execute(words, (writer,))}

    def add_items(self, owner: str, conversation_id: str, items: Iterable[AnyInput]) -> None:
        """More items of a conversation; of one that was dropped meanwhile, nothing."""
        words = """
            INSERT INTO conversation_items (owner, conversation, id, data)
            SELECT owner, id, ?, ? FROM conversations WHERE owner = ? AND id = ?
        """
        rows = [(item.id, msgspec.json.encode(item), owner, conversation_id) for item in items]
        self._connection.executemany(words, rows)

    def save_conversation(self, owner: str, conversation: StoredConversation) -> None:
        """A conversation, or its new metadata."""
        words = """
            INSERT INTO conversations (owner, id, created, metadata) VALUES (?, ?, ?, ?)
            ON CONFLICT (owner, id) DO UPDATE SET metadata = excluded.metadata
        """
        metadata = msgspec.json.encode(conversation.metadata)
        self._connection.execute(words, (owner, conversation.id, conversation.created_at, metadata))

    def delete_conversation(self, owner: str, conversation_id: str) -> None:
        """Forget a conversation and its items."""
        self._connection.execute(
            "DELETE FROM conversation_items WHERE owner = ? AND conversation = ?", (owner, conversation_id)
        )
        self._connection.execute("DELETE FROM conversations WHERE owner = ? AND id = ?", (owner, conversation_id))

    def delete_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Forget an item of a conversation; whether there was one."""
        words = "DELETE FROM conversation_items WHERE owner = ? AND conversation = ? AND id = ?"
        return self._connection.execute(words, (owner, conversation_id, item_id)).rowcount > 0

    def owns(self, response_id: str, writer: str) -> bool:
        """Whether the response is this writer's."""
        row = self._connection.execute("SELECT writer FROM responses WHERE id = ?", (response_id,)).fetchone()
        return row is not None and row[0] == writer

    def take_over(self, response_id: str, old: str, new: str) -> bool:
        """Take a response over; whether nobody was faster."""
        words = "UPDATE responses SET writer = ? WHERE id = ? AND writer = ?"
        return self._connection.execute(words, (new, response_id, old)).rowcount == 1

    def delete_response(self, response_id: str) -> None:
        """Forget a response."""
        for words in (
            "DELETE FROM items WHERE response = ?",
            "DELETE FROM events WHERE response = ?",
            "DELETE FROM responses WHERE id = ?",
        ):
            self._connection.execute(words, (response_id,))

    def save_heartbeat(self, writer: str, now: float) -> None:
        """This writer lives."""
        words = "INSERT INTO writers (name, heartbeat) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET heartbeat = excluded.heartbeat"
        self._connection.execute(words, (writer, now))

    def delete_writer(self, writer: str) -> None:
        """This writer ends."""
        self._connection.execute("DELETE FROM writers WHERE name = ?", (writer,))

    def delete_expired(self, before: int, most: int) -> int:
        """Delete what ended before that time, then the oldest until at most `most` bytes are left; how many."""
        old = "SELECT id FROM responses WHERE writer IS NULL AND created < ? ORDER BY created LIMIT ?"
        gone = [row[0] for row in self._connection.execute(old, (before, MAX_DELETES_PER_TRANSACTION))]
        size = self._connection.execute("SELECT total(size) FROM responses").fetchone()[0]
        if size > most:
            words = "SELECT id, size FROM responses WHERE writer IS NULL AND created >= ? ORDER BY created"
            for response_id, each in self._connection.execute(words, (before,)):
                if size <= most or len(gone) >= MAX_DELETES_PER_TRANSACTION:
                    break
                gone.append(response_id)
                size -= each
        for response_id in gone:
            self.delete_response(response_id)
        return len(gone)

    # Read

    def find_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        """The conversation of that owner with that id."""
        words = "SELECT created, metadata FROM conversations WHERE owner = ? AND id = ?"
        row = self._connection.execute(words, (owner, conversation_id)).fetchone()
        if row is None:
            return None
        return StoredConversation(id=conversation_id, created_at=row[0], metadata=msgspec.json.decode(row[1]))

    def conversation_items(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """Its items, in order."""
        words = "SELECT data FROM conversation_items WHERE owner = ? AND conversation = ? ORDER BY position"
        return tuple(
            _item_decoder.decode(data) for (data,) in self._connection.execute(words, (owner, conversation_id))
        )

    def load_log(self, owner: str, response_id: str) -> tuple[EventLog, str | None] | None:
        """The log of that owner's response as it is now, and who writes it; None: it has ended."""
        words = "SELECT base_response, input_items, writer FROM responses WHERE id = ? AND owner = ?"
        row = self._connection.execute(words, (response_id, owner)).fetchone()
        if row is None:
            return None
        log = EventLog(_response_decoder.decode(row[0]), owner, _items_decoder.decode(row[1]))
        log.add_stored(self.load_entries(response_id))
        if row[2] is None:
            log.end_log()
        return log, row[2]

    def find_conversation_item(self, owner: str, item_id: str) -> AnyInput | None:
        """An item of a conversation of that owner's, by id."""
        row = self._connection.execute(
            "SELECT data FROM conversation_items WHERE owner = ? AND id = ?", (owner, item_id)
        ).fetchone()
        return _item_decoder.decode(row[0]) if row else None

    def load_entries(self, response_id: str, start: int = 0) -> list[LogEntry]:
        """The frames of a response from a number on."""
        words = "SELECT data FROM events WHERE response = ? AND number >= ? ORDER BY number"
        return [
            LogEntry(ev.decode_event(data), data, None)
            for (data,) in self._connection.execute(words, (response_id, start))
        ]

    def find_writer(self, response_id: str) -> str | None:
        """Who writes a response; None: it has ended, or is gone."""
        row = self._connection.execute("SELECT writer FROM responses WHERE id = ?", (response_id,)).fetchone()
        return row[0] if row else None

    def find_holder(self, owner: str, item_id: str) -> str | None:
        """The latest response of that owner's that holds an item."""
        words = """
            SELECT response FROM items JOIN responses ON responses.id = response
            WHERE items.owner = ? AND items.id = ? ORDER BY created DESC
        """
        row = self._connection.execute(words, (owner, item_id)).fetchone()
        return row[0] if row else None

    def list_orphaned(self, alive: Callable[[str, float], bool]) -> list[tuple[str, str, str]]:
        """Owner, id and writer of the responses whose writer is `alive` (by name and latest beat) no more."""
        words = """
            SELECT owner, id, writer, coalesce(heartbeat, 0) FROM responses LEFT JOIN writers ON name = writer
            WHERE writer IS NOT NULL
        """
        rows = self._connection.execute(words).fetchall()
        return [(owner, found, writer) for owner, found, writer, beat in rows if not alive(writer, beat)]

    def _insert_item_ids(self, owner: str, response_id: str, ids: Iterable[str | None]) -> None:
        rows = [(owner, item_id, response_id) for item_id in ids if item_id]
        if rows:
            self._connection.executemany("INSERT OR IGNORE INTO items (owner, id, response) VALUES (?, ?, ?)", rows)
