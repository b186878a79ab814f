"""Shared by the tests of stores: logs with four steps, a store that is closed at the end, and a server program."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
from msgspec import structs

from antiphon.app.batches.stored_files import FileWriter
from antiphon.app.store.base import StoredCompletion
from antiphon.app.store.batches.records import StoredFile
from antiphon.app.store.database import Database
from antiphon.app.store.postgres.address import parse_address
from antiphon.app.store.postgres.database import PostgresDatabase
from antiphon.app.store.postgres.store import PostgresStore
from antiphon.app.store.sqlite.database import SqliteDatabase
from antiphon.app.store.sqlite.schema import open_connection
from antiphon.app.store.sqlite.store import MemoryStore, SqliteStore
from antiphon.app.store.store import ResponseStore
from antiphon.app.store.writing.write_ops import StoreTimings
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.reply_form import ChatForm
from antiphon.app.turn_types.step_detail import TokenDetail
from antiphon.app.turns.stored_history import with_ids
from antiphon.events.base import Event
from antiphon.events.inputs import HostedInput, InputMessage, InputText
from antiphon.events.response import Response
from antiphon.state.segments import Say
from tests.progress import wait_with_progress
from tests.state.machine_helpers import create_machine

SERVER_PROGRAM = """
import sys
sys.path.insert(0, ROOT)
import uvloop
from pathlib import Path
from antiphon.app.context import create_context
from antiphon.app.lifecycle.listeners import bind_socket
from antiphon.app.main.server import run_server
from antiphon.app.options.settings import Settings
from antiphon.app.store.factory import open_store
from tests.serving import scripted_registry

OUTPUT = "<think>\\nLet me see.\\n</think>\\n\\n" + "word " * 40
SLOW_OUTPUT = [step for number in range(120) for step in (f"w{number} ", {"pause": 0.03})]
SCRIPT = [
    {"name": "slow", "when": ["Slow"], "output": SLOW_OUTPUT},
    {"name": "long", "output": [OUTPUT], "tokens_per_chunk": 2},
]

async def main(path, inspect="off"):
    is_url = path.startswith("postgresql:")
    where = {"store_url": path} if is_url else {"store_file": Path(path)}
    settings = Settings(port=0, shutdown_timeout=0.2, inspect=inspect, **where)
    with bind_socket(settings) as listener:
        store = open_store(settings)
        context = create_context(settings, scripted_registry(SCRIPT, delay=0.003), store=store)
        on_ready = lambda port: print(port, flush=True)
        await run_server(context, listener, on_ready=on_ready, on_request_done=lambda record: None)
        await store.close()

uvloop.run(main(*sys.argv[1:]))
"""
"""Program of a server process over a store, whose file or URL is its first argument, and how it records the second. Prints its port."""
SYNCHRONOUS_FULL = 2
"""Value of `PRAGMA synchronous` with which SQLite syncs the file at every commit."""
SHORT_TIMINGS = StoreTimings(heartbeat_s=0.05, lease_s=30.0, sweep_interval_s=0.05)
INPUT_ITEMS = (InputMessage(role="user", content="hi"), HostedInput(kind="web_search_call", payload={"query": "x"}))


class StorePlace(Protocol):
    """A file or a database in which a test opens stores, each as if it were another process."""

    database_class: type[Database]

    @property
    def name(self) -> str:
        """The file or the URL."""
        ...

    def open(self, **options: Any) -> AbstractAsyncContextManager[ResponseStore]:
        """Opens a store with short timings."""
        ...

    def open_database(self) -> Database:
        """Opens a connection for the statements of a writer."""
        ...

    def read_rows(self, query: str) -> list[tuple[Any, ...]]:
        """Returns rows that are committed now. Writes, too: the statement is committed."""
        ...

    def is_synced(self, database: Database) -> bool:
        """Tells whether the commit of the current transaction waits until its data is on disk."""
        ...

    def settings(self) -> dict[str, Any]:
        """Returns the settings of a server with a store there."""
        ...

    def quote_bytes(self, text: str) -> str:
        """Returns the SQL of a column of bytes with this text, whose quotes are doubled."""
        ...


class SqlitePlace:
    database_class: type[Database] = SqliteDatabase

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    def open(self, **options: Any) -> AbstractAsyncContextManager[ResponseStore]:
        return open_test_store(self.path, **options)

    def open_database(self) -> Database:
        return SqliteDatabase(open_connection(self.path))

    def read_rows(self, query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.path) as connection:
            rows = connection.execute(query).fetchall()
        connection.close()
        return rows

    def is_synced(self, database: Database) -> bool:
        return bool(database.query_rows("PRAGMA synchronous")[0][0] == SYNCHRONOUS_FULL)

    def settings(self) -> dict[str, Any]:
        return {"store_file": self.path}

    def quote_bytes(self, text: str) -> str:
        return f"CAST('{text}' AS BLOB)"


class PostgresPlace:
    database_class: type[Database] = PostgresDatabase

    def __init__(self, url: str) -> None:
        self.url = self.name = url

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[ResponseStore]:
        store = PostgresStore(self.url, **{"timings": SHORT_TIMINGS, **options})
        try:
            yield store
        finally:
            await store.close()

    def open_database(self) -> Database:
        return PostgresDatabase(parse_address(self.url))

    def read_rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query)  # type: ignore[call-overload]  # of the tests
            return cursor.fetchall() if cursor.description else []

    def is_synced(self, database: Database) -> bool:
        return bool(database.query_rows("SHOW synchronous_commit")[0][0] == "on")

    def settings(self) -> dict[str, Any]:
        return {"store_url": self.url}

    def quote_bytes(self, text: str) -> str:
        return f"convert_to('{text}', 'UTF8')"


@asynccontextmanager
async def open_test_store(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **{"timings": SHORT_TIMINGS, **options})
    try:
        yield store
    finally:
        await store.close()


class MemoryPlace:
    """A store in memory in place of a file: each one is new."""

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[MemoryStore]:
        store = MemoryStore(**options)
        try:
            yield store
        finally:
            await store.close()


AnyPlace = StorePlace | MemoryPlace


def take_over(database: Database, response_id: str, old: str, new: str) -> None:
    """Makes `new` the writer of a response, once `old` is not in the middle of a transaction."""

    def is_taken() -> bool:
        database.begin(sync=True)
        is_taken = database.take_over(response_id, old, new)
        database.commit()
        return is_taken

    wait_with_progress(is_taken, "the response is taken over")


async def add_completion(
    store: ResponseStore,
    name: str,
    *,
    owner: str = "me",
    created: int = 2_000_000_000,
    counts: Sequence[int] = (4, 4),
    metadata: dict[str, str] | None = None,
    detail: TokenDetail | None = None,
) -> StoredCompletion:
    """Adds a chat completion and appends the first steps, as many as in `counts`, of each of its choices.

    Returns when the choices with all four steps are stored.
    """
    ids = [f"chatcmpl_{name}{number}" for number in range(len(counts))]
    responses = [structs.replace(make_response(name, created=created), id=choice_id) for choice_id in ids]
    logs = [EventLog(response, owner, keeps_details=True) for response in responses]
    completion = StoredCompletion(
        id=ids[0], created_at=created, model="m", metadata=metadata or {}, choice_ids=tuple(ids), form=ChatForm()
    )
    for log in logs:
        log.append_step(make_steps()[0])
    store.add_completion(completion, ({"role": "user", "content": name},), logs)
    for log, count in zip(logs, counts, strict=True):
        for step in make_steps()[1:count]:
            log.append_step(step, detail)
        if count == 4:
            log.end_log()
            await log.wait_published()
    return completion


def make_response(name: str, *, background: bool = False, created: int = 2_000_000_000) -> Response:
    return Response(id=f"resp_{name}", created_at=created, model="m", background=background, metadata={"a": "b"})


def make_steps() -> list[list[Event]]:
    machine = create_machine()
    return [machine.begin(), machine.feed(Say("a")), machine.feed(Say("b")), machine.stop()]


def add_log(store: ResponseStore, name: str, count: int = 4, owner: str = "me", **options: Any) -> EventLog:
    """Adds a log to the store and appends the first `count` of its four steps."""
    first = make_response(name, **options)
    log = EventLog(first, owner, with_ids(INPUT_ITEMS, first.id))
    for number, step in enumerate(make_steps()[:count]):
        log.append_step(step)
        if number == 0:
            store.add_log(log)
    if count == 4:
        log.end_log()
    return log


def read_uses(place: StorePlace) -> dict[bytes, int]:
    """Returns the number of uses of each block, and asserts that they are those of the records."""
    counted: Counter[bytes] = Counter()
    for (keys,) in place.read_rows("SELECT blocks FROM turn_records"):
        counted.update(bytes(keys[start : start + 16]) for start in range(0, len(keys), 16))
    rows = place.read_rows("SELECT key, uses, size, length(data) FROM prompt_blocks")
    assert all(size == length for _, _, size, length in rows)
    uses = {bytes(key): number for key, number, _, _ in rows}
    assert uses == counted
    return uses


async def becomes_true(condition: Any) -> bool:
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


def make_items(numbers: Sequence[int], length: int = 10) -> tuple[InputMessage, ...]:
    return tuple(
        InputMessage(role="user", content=(InputText(text="x" * length),), id=f"msg_{number}") for number in numbers
    )


NOW = 2_000_000_000


async def add_file(
    store: ResponseStore, name: str, content: bytes = b"abc", *, is_complete: bool = True, **fields: Any
) -> StoredFile:
    file = StoredFile(
        **{
            "created_at": NOW,
            "expires_at": None,
            "filename": "a",
            "purpose": "user_data",
            **fields,
            "id": f"file-{name}",
        }
    )
    writer = FileWriter(store, "me", file, is_limited=True)
    await writer.begin()
    await writer.write(content)
    await writer.flush()
    if is_complete:
        assert await store.change(writer.complete)
    return writer.file
