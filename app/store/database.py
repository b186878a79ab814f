"""The file: what is written where, as plain calls on one connection. It knows no thread, no log and no clock.

One row for each response, one for each event, one for each item, which is found by id. Rows of a response are written
by one process, whose name stands in `writer` until the response has ended; whoever writes checks that it still does.
Another process that wants a response to end says so in `asked`.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from antiphon.app.event_log import Frame, Log, ends
from antiphon.app.store.base import Conversation
from antiphon.events import stream as ev
from antiphon.events.inputs import AnyInput
from antiphon.events.response import Response

VERSION = 2
SCHEMA = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created INTEGER NOT NULL, head BLOB NOT NULL, given BLOB NOT NULL,
    size INTEGER NOT NULL DEFAULT 0, writer TEXT, asked INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX by_age ON responses (created);
CREATE INDEX by_writer ON responses (writer) WHERE writer IS NOT NULL;
CREATE TABLE events (
    response TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (response, number)
) WITHOUT ROWID;
CREATE TABLE items (
    owner TEXT NOT NULL, id TEXT NOT NULL, response TEXT NOT NULL, PRIMARY KEY (owner, id, response)
) WITHOUT ROWID;
CREATE INDEX by_response ON items (response);
CREATE TABLE conversations (
    owner TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL, metadata BLOB NOT NULL, PRIMARY KEY (owner, id)
) WITHOUT ROWID;
CREATE TABLE talk (
    place INTEGER PRIMARY KEY, owner TEXT NOT NULL, conversation TEXT NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL
);
CREATE INDEX by_conversation ON talk (owner, conversation, place);
CREATE INDEX by_item ON talk (owner, id);
CREATE TABLE writers (name TEXT PRIMARY KEY, beat REAL NOT NULL) WITHOUT ROWID;
"""
AT_ONCE = 200
"""Responses that are deleted in one transaction: meanwhile nobody else is written."""
MIGRATIONS: tuple[str, ...] = ("ALTER TABLE responses ADD COLUMN asked INTEGER NOT NULL DEFAULT 0",)
"""From version 1 to 2, from 2 to 3, …"""

_log = structlog.get_logger("antiphon.store")
_head = msgspec.json.Decoder(Response)
_item = msgspec.json.Decoder[AnyInput](AnyInput)
_given = msgspec.json.Decoder(tuple[AnyInput, ...])


class StoreError(OSError):
    """The file cannot be used; the message is one line for a person."""


class LostError(Exception):
    """The response is another process's by now: this one was silent for too long."""


class Disk:
    """A connection to the file. One thread at a time may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = connect(path)

    def close(self) -> None:
        """Let go of the file."""
        self._line.close()

    def begin(self, *, sync: bool) -> None:
        """Begin to write. `sync`: what is written is on the medium when `commit` returns."""
        self._line.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
        self._line.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """What was written since `begin` is there, and others see it."""
        self._line.execute("COMMIT")

    def rollback(self) -> None:
        """Nothing was written since `begin`."""
        if self._line.in_transaction:
            self._line.execute("ROLLBACK")

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """One transaction, on the medium when it is done."""
        self.begin(sync=True)
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    # Written within begin and commit

    def put(self, log: Log, writer: str) -> None:
        """A response begins."""
        head, given = msgspec.json.encode(log.head), msgspec.json.encode(log.given)
        words = "INSERT INTO responses (id, owner, created, head, given, writer) VALUES (?, ?, ?, ?, ?, ?)"
        self._line.execute(words, (log.id, log.owner, int(log.head.created_at), head, given, writer))
        self._items(log.owner, log.id, (item.id for item in log.given))

    def say(self, owner: str, response_id: str, frames: Sequence[Frame], writer: str) -> None:
        """A step of a response: all of it or nothing. Raises `LostError`."""
        if not self.holds(response_id, writer):
            raise LostError(response_id)
        rows = [(response_id, frame.event.sequence_number, frame.data) for frame in frames]
        self._line.executemany("INSERT INTO events (response, number, data) VALUES (?, ?, ?)", rows)
        done = (frame.event.item.id for frame in frames if isinstance(frame.event, ev.ItemDone))
        self._items(owner, response_id, done)
        if ends(frames):
            size = "(SELECT sum(length(data)) FROM events WHERE response = id)"
            self._line.execute(f"UPDATE responses SET writer = NULL, size = {size} WHERE id = ?", (response_id,))  # noqa: S608

    def ask(self, response_id: str) -> None:
        """Ask whoever writes a response to end it."""
        self._line.execute("UPDATE responses SET asked = 1 WHERE id = ? AND writer IS NOT NULL", (response_id,))

    def count(self, response_id: str) -> int:
        """How many events of a response are there."""
        found: int = self._line.execute("SELECT count(*) FROM events WHERE response = ?", (response_id,)).fetchone()[0]
        return found

    def held(self, writer: str) -> dict[str, bool]:
        """Responses that are this writer's, and of each whether it is asked to end it."""
        words = "SELECT id, asked FROM responses WHERE writer = ?"
        return {response_id: bool(asked) for response_id, asked in self._line.execute(words, (writer,))}

    def add(self, owner: str, conversation_id: str, items: Iterable[AnyInput]) -> None:
        """More items of a conversation; of one that was dropped meanwhile, nothing."""
        words = """
            INSERT INTO talk (owner, conversation, id, data)
            SELECT owner, id, ?, ? FROM conversations WHERE owner = ? AND id = ?
        """
        rows = [(item.id, msgspec.json.encode(item), owner, conversation_id) for item in items]
        self._line.executemany(words, rows)

    def save(self, owner: str, conversation: Conversation) -> None:
        """A conversation, or its new metadata."""
        words = """
            INSERT INTO conversations (owner, id, created, metadata) VALUES (?, ?, ?, ?)
            ON CONFLICT (owner, id) DO UPDATE SET metadata = excluded.metadata
        """
        metadata = msgspec.json.encode(conversation.metadata)
        self._line.execute(words, (owner, conversation.id, conversation.created_at, metadata))

    def drop(self, owner: str, conversation_id: str) -> None:
        """Forget a conversation and its items."""
        self._line.execute("DELETE FROM talk WHERE owner = ? AND conversation = ?", (owner, conversation_id))
        self._line.execute("DELETE FROM conversations WHERE owner = ? AND id = ?", (owner, conversation_id))

    def remove(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Forget an item of a conversation; whether there was one."""
        words = "DELETE FROM talk WHERE owner = ? AND conversation = ? AND id = ?"
        return self._line.execute(words, (owner, conversation_id, item_id)).rowcount > 0

    def holds(self, response_id: str, writer: str) -> bool:
        """Whether the response is this writer's."""
        row = self._line.execute("SELECT writer FROM responses WHERE id = ?", (response_id,)).fetchone()
        return row is not None and row[0] == writer

    def take(self, response_id: str, old: str, new: str) -> bool:
        """Take a response over; whether nobody was faster."""
        words = "UPDATE responses SET writer = ? WHERE id = ? AND writer = ?"
        return self._line.execute(words, (new, response_id, old)).rowcount == 1

    def delete(self, response_id: str) -> None:
        """Forget a response."""
        for words in (
            "DELETE FROM items WHERE response = ?",
            "DELETE FROM events WHERE response = ?",
            "DELETE FROM responses WHERE id = ?",
        ):
            self._line.execute(words, (response_id,))

    def beat(self, writer: str, now: float) -> None:
        """This writer lives."""
        words = "INSERT INTO writers (name, beat) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET beat = excluded.beat"
        self._line.execute(words, (writer, now))

    def leave(self, writer: str) -> None:
        """This writer ends."""
        self._line.execute("DELETE FROM writers WHERE name = ?", (writer,))

    def forget(self, before: int, most: int) -> int:
        """Delete what ended before that time, then the oldest until at most `most` bytes are left; how many."""
        old = "SELECT id FROM responses WHERE writer IS NULL AND created < ? ORDER BY created LIMIT ?"
        gone = [row[0] for row in self._line.execute(old, (before, AT_ONCE))]
        size = self._line.execute("SELECT total(size) FROM responses").fetchone()[0]
        if size > most:
            words = "SELECT id, size FROM responses WHERE writer IS NULL AND created >= ? ORDER BY created"
            for response_id, each in self._line.execute(words, (before,)):
                if size <= most or len(gone) >= AT_ONCE:
                    break
                gone.append(response_id)
                size -= each
        for response_id in gone:
            self.delete(response_id)
        return len(gone)

    # Read

    def conversation(self, owner: str, conversation_id: str) -> Conversation | None:
        """The conversation of that owner with that id."""
        words = "SELECT created, metadata FROM conversations WHERE owner = ? AND id = ?"
        row = self._line.execute(words, (owner, conversation_id)).fetchone()
        if row is None:
            return None
        return Conversation(id=conversation_id, created_at=row[0], metadata=msgspec.json.decode(row[1]))

    def talk(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """Its items, in order."""
        words = "SELECT data FROM talk WHERE owner = ? AND conversation = ? ORDER BY place"
        return tuple(_item.decode(data) for (data,) in self._line.execute(words, (owner, conversation_id)))

    def load(self, owner: str, response_id: str) -> tuple[Log, str | None] | None:
        """The log of that owner's response as it is now, and who writes it; None: it has ended."""
        words = "SELECT head, given, writer FROM responses WHERE id = ? AND owner = ?"
        row = self._line.execute(words, (response_id, owner)).fetchone()
        if row is None:
            return None
        log = Log(_head.decode(row[0]), owner, _given.decode(row[1]))
        log.add(self.frames(response_id))
        if row[2] is None:
            log.end()
        return log, row[2]

    def talked(self, owner: str, item_id: str) -> AnyInput | None:
        """An item of a conversation of that owner's, by id."""
        row = self._line.execute("SELECT data FROM talk WHERE owner = ? AND id = ?", (owner, item_id)).fetchone()
        return _item.decode(row[0]) if row else None

    def frames(self, response_id: str, start: int = 0) -> list[Frame]:
        """The frames of a response from a number on."""
        words = "SELECT data FROM events WHERE response = ? AND number >= ? ORDER BY number"
        return [Frame(ev.decode_event(data), data, None) for (data,) in self._line.execute(words, (response_id, start))]

    def writer(self, response_id: str) -> str | None:
        """Who writes a response; None: it has ended, or is gone."""
        row = self._line.execute("SELECT writer FROM responses WHERE id = ?", (response_id,)).fetchone()
        return row[0] if row else None

    def holder(self, owner: str, item_id: str) -> str | None:
        """The latest response of that owner's that holds an item."""
        words = """
            SELECT response FROM items JOIN responses ON responses.id = response
            WHERE items.owner = ? AND items.id = ? ORDER BY created DESC
        """
        row = self._line.execute(words, (owner, item_id)).fetchone()
        return row[0] if row else None

    def orphans(self, alive: Callable[[str, float], bool]) -> list[tuple[str, str, str]]:
        """Owner, id and writer of the responses whose writer is `alive` (by name and latest beat) no more."""
        words = """
            SELECT owner, id, writer, coalesce(beat, 0) FROM responses LEFT JOIN writers ON name = writer
            WHERE writer IS NOT NULL
        """
        rows = self._line.execute(words).fetchall()
        return [(owner, found, writer) for owner, found, writer, beat in rows if not alive(writer, beat)]

    def _items(self, owner: str, response_id: str, ids: Iterable[str | None]) -> None:
        rows = [(owner, item_id, response_id) for item_id in ids if item_id]
        if rows:
            self._line.executemany("INSERT OR IGNORE INTO items (owner, id, response) VALUES (?, ?, ?)", rows)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the file, which is made if need be. Raises `StoreError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)  # before sqlite does: what lies beside it gets the same mode
        line = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        line.execute("PRAGMA journal_mode = WAL")
        _prepare(line)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot open the store {path}: {error}") from None
    return line


def _prepare(line: sqlite3.Connection) -> None:
    line.execute("BEGIN IMMEDIATE")
    found = line.execute("PRAGMA user_version").fetchone()[0]
    if found > VERSION:
        line.execute("ROLLBACK")
        raise StoreError(f"it was made by a newer Antiphon (version {found}, this one knows {VERSION})")
    if found == 0:
        for words in SCHEMA.split(";"):
            line.execute(words)
    else:
        for migrate in MIGRATIONS[found - 1 :]:
            line.execute(migrate)
    line.execute(f"PRAGMA user_version = {VERSION}")
    line.execute("COMMIT")
