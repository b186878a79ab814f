"""A batch belongs to one server at a time: what another one, a repeated change or a stop must not do to it.

Each test plays the moment of a kill, a pause or an outage that a test with processes meets rarely.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from antiphon.app.batches import batch_run
from antiphon.app.batches.batch_run import BatchLostError, BatchRun, BatchTools
from antiphon.app.batches.line_request import LineReply
from antiphon.app.batches.output_files import OutputFiles
from antiphon.app.batches.stored_files import FileWriter, read_pieces
from antiphon.app.errors import storage_unavailable
from antiphon.app.store.batches.records import BatchLine, LineResult, StoredBatch, StoredFile, TokenCounts
from antiphon.app.store.database import Database
from antiphon.app.store.postgres.address import parse_address
from antiphon.app.store.postgres.database import PostgresDatabase
from antiphon.app.store.postgres.schema import create_tables
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.ids import new_id
from tests.app.store.store_helpers import PostgresPlace, SqlitePlace, StorePlace
from tests.postgres_server import PostgresServer
from tests.progress import HANG_TIMEOUT_S

T = TypeVar("T")
NUM_LINES = 3
INPUT = b"".join(
    json.dumps({"custom_id": f"c{number}", "method": "POST", "url": "/v1/responses", "body": {"model": "m"}}).encode()
    + b"\n"
    for number in range(NUM_LINES)
)
REPLY = LineReply(status=200, body=b'{"usage":{"input_tokens":2,"output_tokens":3}}', request_id="req_1")
BATCH = StoredBatch(
    id="batch_a",
    endpoint="/v1/responses",
    input_file_id="file-in",
    created_at=2_000_000_000,
    expires_at=4_000_000_000,
    completion_window="24h",
    metadata=None,
    output_expires_s=None,
)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "store" / "responses.db")
    return PostgresPlace(request.getfixturevalue("postgres_server").create_database())


@pytest.fixture
async def store(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ResponseStore]:
    """A store with an input file and a batch that belongs to it."""
    monkeypatch.setattr(batch_run, "RETRY_PAUSE_S", 0.01)
    async with place.open() as opened:
        file = StoredFile(id="file-in", created_at=1, expires_at=None, filename="in.jsonl", purpose="batch")
        writer = FileWriter(opened, "me", file)
        await writer.begin()
        await writer.write(INPUT)
        await writer.flush()
        await opened.change(writer.complete)
        await opened.change(lambda database: database.start_batch("me", BATCH, opened.name))
        yield opened


async def take_batch(store: ResponseStore, on_lines: Callable[[], None] = lambda: None) -> BatchRun:
    """Returns the batch as the runner of this store finds it."""
    ((owner, batch),) = await store.read(lambda database: database.batches.list_owned(store.name))
    return BatchRun(BatchTools(store, time.time, new_id, on_lines), owner, batch)


async def run_all_lines(store: ResponseStore) -> BatchRun:
    """Runs the batch, each of whose lines gets the same reply at once."""

    def start_lines() -> None:
        while run.queue.lines:
            task = asyncio.create_task(run.store_reply(run.queue.lines.popleft(), REPLY))
            run.line_tasks.add(task)
            task.add_done_callback(run.end_line)

    run = await take_batch(store, start_lines)
    await run.run()
    return run


async def read_custom_ids(store: ResponseStore, file_id: str | None) -> list[str]:
    """Returns the ids of the lines of an output file, which must exist for its owner."""
    assert file_id is not None
    assert await store.read(lambda database: database.files.find_file("me", file_id, time.time())) is not None
    content = b"".join([piece async for piece in read_pieces(store, file_id)])
    return [json.loads(line)["custom_id"] for line in content.splitlines()]


async def find_ended(store: ResponseStore) -> StoredBatch:
    """Returns the batch, which must not belong to a server any more."""
    assert not await store.read(lambda database: database.batches.list_owned(store.name))
    batch = await store.read(lambda database: database.batches.find_batch("me", BATCH.id))
    assert batch is not None
    return batch


async def test_result_that_is_stored_while_the_batch_is_cancelled_counts(store: ResponseStore) -> None:
    started = asyncio.Event()
    run = await take_batch(store, started.set)
    running = asyncio.create_task(run.run())
    await started.wait()
    run.queue.lines.rotate(-1)
    task = asyncio.create_task(run.store_reply(run.queue.lines.popleft(), REPLY))
    run.line_tasks.add(task)
    await asyncio.sleep(0)  # the change is queued now
    run.stop("cancelled", 7)
    await running
    batch = await find_ended(store)
    assert (batch.status, batch.status_times["cancelling"]) == ("cancelled", 7)
    assert await read_custom_ids(store, batch.output_file_id) == ["c1"]
    assert await read_custom_ids(store, batch.error_file_id) == ["c0", "c2"]
    assert (batch.total, batch.completed, batch.failed) == (3, 1, 0) and batch.usage == TokenCounts(2, 0, 3, 0)


async def test_server_that_lost_a_batch_does_not_change_its_lines(store: ResponseStore) -> None:
    late = await take_batch(store)
    await store.change(lambda database: database.take_over(BATCH.id, store.name, "other", "batches"))
    line = BatchLine(number=1, rank=1, start=0, length=1, custom_id="c0", model=None)
    result = LineResult(number=1, custom_id="c0", status=200, body=b"{}")

    def store_result(database: Database) -> None:
        assert database.batches.insert_lines(BATCH.id, "other", [line])
        assert database.batches.save_result(BATCH.id, "other", result, TokenCounts())

    await store.change(store_result)
    with pytest.raises(BatchLostError):
        await late.run()
    with pytest.raises(BatchLostError):
        await late.store_reply(line, REPLY)
    assert not await store.change(lambda database: database.batches.insert_lines(BATCH.id, store.name, [line]))
    assert await store.read(lambda database: database.batches.list_results(BATCH.id, 0, 9)) == [result]


async def test_batch_that_was_cancelled_while_its_dead_server_validated_it_has_all_lines(store: ResponseStore) -> None:
    line = BatchLine(number=1, rank=1, start=0, length=len(INPUT) // NUM_LINES - 1, custom_id="c0", model="m")

    def cancel_half_validated(database: Database) -> None:
        database.batches.insert_lines(BATCH.id, store.name, [line])
        database.batches.request_cancel(BATCH.id, 7)

    await store.change(cancel_half_validated)
    await run_all_lines(store)
    batch = await find_ended(store)
    assert (batch.status, batch.status_times["cancelling"], batch.total) == ("cancelled", 7, NUM_LINES)
    assert await read_custom_ids(store, batch.error_file_id) == ["c0", "c1", "c2"] and batch.output_file_id is None


async def test_end_of_a_batch_whose_confirmation_is_lost_keeps_the_files(
    store: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, num_lost = store.change, 0

    async def lose_confirmation(apply: Callable[[Database], T]) -> T:
        nonlocal num_lost
        result = await change(apply)
        if not num_lost and not await store.read(lambda database: database.batches.list_owned(store.name)):
            num_lost += 1
            raise storage_unavailable("It may have been made.")
        return result

    monkeypatch.setattr(store, "change", lose_confirmation)
    await run_all_lines(store)
    batch = await find_ended(store)
    assert num_lost == 1 and batch.status == "completed"
    assert await read_custom_ids(store, batch.output_file_id) == ["c0", "c1", "c2"]


async def test_server_that_stops_while_it_ends_a_batch_keeps_the_files(
    store: ResponseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue = store.debug.logs.enqueue_change
    running: asyncio.Task[Any] | None = None

    def stop_at_end(apply: Callable[[Database], T]) -> Any:
        def apply_and_stop(database: Database) -> T:
            result = apply(database)
            if running is not None and not database.batches.is_input("file-in"):
                loop.call_soon_threadsafe(running.cancel)
                time.sleep(0.1)  # the commit comes after the cancellation
            return result

        return enqueue(apply_and_stop)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(store.debug.logs, "enqueue_change", stop_at_end)
    running = asyncio.create_task(run_all_lines(store))
    with pytest.raises(asyncio.CancelledError):
        await running
    running = None
    await store.change(lambda _: None)
    batch = await find_ended(store)
    assert await read_custom_ids(store, batch.output_file_id) == ["c0", "c1", "c2"]


async def test_batch_does_not_end_without_its_files(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server that runs no batches took this one for dead, and deleted the files only."""
    write, written = OutputFiles.write, list[str]()

    async def write_and_lose(files: OutputFiles, unrun_code: str) -> StoredBatch:
        batch = await write(files, unrun_code)
        written.append(batch.output_file_id or "")
        if len(written) == 1:
            await store.change(lambda database: database.files.delete_file(written[0]))
        return batch

    monkeypatch.setattr(OutputFiles, "write", write_and_lose)
    await run_all_lines(store)
    batch = await find_ended(store)
    assert batch.output_file_id == written[1] != written[0]
    assert await read_custom_ids(store, batch.output_file_id) == ["c0", "c1", "c2"]


def test_batch_is_not_taken_over_in_the_middle_of_a_transaction(postgres_server: PostgresServer) -> None:
    """SQLite has one transaction at a time; in PostgreSQL the row of the batch must be locked first."""
    place = PostgresPlace(postgres_server.create_database())
    create_tables(parse_address(place.url))
    first, second = place.open_database(), place.open_database()
    line = BatchLine(number=1, rank=1, start=0, length=1, custom_id="c0", model=None)
    result = LineResult(number=1, custom_id="c0", status=200, body=b"{}")
    first.begin(sync=True)
    first.batches.insert_batch("me", BATCH, "first")
    first.batches.insert_lines(BATCH.id, "first", [line])
    first.commit()
    execute, num_statements = first._connection.execute, 0

    def execute_and_take_over(statement: str, values: Any = (), /) -> Any:
        nonlocal num_statements
        rows, num_statements = execute(statement, values), num_statements + 1
        if num_statements == 1:
            second.begin(sync=True)
            second.take_over(BATCH.id, "first", "second", "batches")
            second.commit()
        return rows

    first.begin(sync=True)
    first.batches._connection.execute = execute_and_take_over  # type: ignore[method-assign]
    first.batches.save_result(BATCH.id, "first", result, TokenCounts())
    first.commit()
    (batch,) = [batch for name in ("first", "second") for _, batch in second.batches.list_owned(name)]
    assert batch.completed == sum(row.status is not None for row in second.batches.list_results(BATCH.id, 0, 9))
    for database in (first, second):
        database.close()


def test_input_that_a_batch_begins_to_read_is_not_deleted_by_another_server(postgres_server: PostgresServer) -> None:
    place = PostgresPlace(postgres_server.create_database())
    create_tables(parse_address(place.url))
    first, second = place.open_database(), place.open_database()
    file = StoredFile(id="file-in", created_at=1, expires_at=None, filename="in.jsonl", purpose="batch")
    first.begin(sync=True)
    first.files.insert_file("me", file, "first")
    first.files.complete_file(file, "first")
    first.commit()
    first.begin(sync=True)
    assert first.start_batch("me", BATCH, "first")
    with ThreadPoolExecutor(max_workers=1) as pool:
        second.begin(sync=True)
        deleting = pool.submit(second.delete_unused_file, file.id)
        wait([deleting], timeout=0.2)  # it waits for the other server
        first.commit()
        assert not deleting.result()
    second.commit()
    assert first.files.find_file("me", file.id, 1) is not None
    for database in (first, second):
        database.close()


def test_batch_of_a_server_that_is_paused_in_a_transaction_is_taken_over(postgres_server: PostgresServer) -> None:
    place = PostgresPlace(postgres_server.create_database())
    address = parse_address(place.url)
    create_tables(address)
    paused, other = PostgresDatabase(address, lease_s=0.2), place.open_database()
    paused.begin(sync=True)
    paused.batches.insert_batch("me", BATCH, "paused")
    paused.commit()
    paused.begin(sync=True)
    assert paused.batches.lock_batch(BATCH.id, "paused")
    deadline = time.monotonic() + HANG_TIMEOUT_S
    while not other.take_over(BATCH.id, "paused", "other", "batches"):
        assert time.monotonic() < deadline, "the lock of a paused server is kept"
        time.sleep(0.05)
    with pytest.raises(psycopg.Error) as caught:
        paused.batches.lock_batch(BATCH.id, "paused")
    assert paused.is_outage(caught.value), "its transaction begins again, on a new connection"
    for database in (paused, other):
        database.close()
