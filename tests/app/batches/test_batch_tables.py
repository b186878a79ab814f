"""The tables of files and batches, on SQLite and PostgreSQL: owners, writers that lost a row, results that stay."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from antiphon.app.store.batches.records import BatchLine, LineResult, StoredBatch, StoredFile, TokenCounts
from antiphon.app.store.database import Database
from antiphon.app.store.postgres.address import parse_address
from antiphon.app.store.postgres.schema import create_tables
from tests.app.store.store_helpers import PostgresPlace, SqlitePlace, StorePlace
from tests.postgres_server import PostgresServer

NOW = int(time.time())


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Database]:
    place: StorePlace
    if request.param == "sqlite":
        place = SqlitePlace(tmp_path / "store" / "responses.db")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        place = PostgresPlace(server.create_database())
        create_tables(parse_address(place.name))
    found = place.open_database()
    found.begin(sync=False)
    yield found
    found.rollback()
    found.close()


def make_file(name: str, expires_at: int | None = None) -> StoredFile:
    return StoredFile(id=f"file-{name}", created_at=NOW, expires_at=expires_at, filename=name, purpose="batch")


def make_batch(name: str, file_id: str = "file-a") -> StoredBatch:
    return StoredBatch(
        id=f"batch_{name}",
        endpoint="/v1/responses",
        input_file_id=file_id,
        created_at=NOW,
        expires_at=NOW + 100,
        completion_window="24h",
        metadata=None,
        output_expires_s=None,
    )


def add_file(database: Database, file: StoredFile, *pieces: bytes) -> None:
    database.files.insert_file("me", file, "w1")
    for number, piece in enumerate(pieces):
        assert database.files.append_piece(file.id, "w1", number, piece)
    assert database.files.complete_file(file, "w1")


def test_file_exists_once_it_is_complete(database: Database) -> None:
    file = make_file("a")
    database.files.insert_file("me", file, "w1")
    assert database.files.append_piece(file.id, "w1", 0, b"abc")
    assert database.files.find_file("me", file.id, NOW) is None
    assert not database.files.append_piece(file.id, "w2", 1, b"x")
    assert not database.files.complete_file(file, "w2")
    assert database.files.complete_file(file, "w1")
    assert database.files.find_file("me", file.id, NOW) == structs.replace(file, size=3)
    assert database.files.find_file("you", file.id, NOW) is None
    assert not database.files.append_piece(file.id, "w1", 1, b"x")
    assert database.files.read_piece(file.id, 0) == b"abc" and database.files.read_piece(file.id, 1) is None


def test_deleted_file_is_purged_in_parts(database: Database) -> None:
    add_file(database, make_file("a"), *[b"x"] * 5)
    add_file(database, make_file("b"), b"y")
    database.files.delete_file("file-a")
    assert database.files.find_file("me", "file-a", NOW) is None and database.files.has_deleted()
    database.files.purge_pieces(3)
    assert [database.files.read_piece("file-a", number) for number in (2, 3)] == [None, b"x"]
    database.files.purge_pieces(3)
    assert not database.files.has_deleted() and database.files.read_piece("file-a", 4) is None
    assert database.files.read_piece("file-b", 0) == b"y"


def test_expired_files_are_deleted_but_no_input_that_is_read(database: Database) -> None:
    for name in ("a", "b", "c"):
        add_file(database, make_file(name, NOW + (1000 if name == "c" else 1)))
    assert database.start_batch("me", make_batch("x", "file-a"), "w1")
    assert not database.delete_unused_file("file-a")
    database.files.delete_expired(NOW + 10)
    assert [database.files.find_file("me", f"file-{name}", NOW) is not None for name in "abc"] == [True, False, True]
    assert database.batches.end_batch(make_batch("x", "file-a").with_status("completed", NOW), "w1")
    database.files.delete_expired(NOW + 10)
    assert database.files.find_file("me", "file-a", NOW) is None


def test_storage_counts_each_file(database: Database) -> None:
    for name in ("a", "b"):
        add_file(database, make_file(name), b"xyz")
    assert database.files.count_bytes("me") == 2 * (3 + 1024) and database.files.count_bytes("you") == 0


def test_only_its_server_changes_a_batch(database: Database) -> None:
    add_file(database, make_file("a"))
    batch = make_batch("x")
    assert database.start_batch("me", batch, "w1")
    assert not database.start_batch("you", make_batch("y"), "w1")
    changed = structs.replace(batch, total=3)
    assert database.batches.save_batch(changed, "w2") is None and not database.batches.end_batch(changed, "w2")
    assert database.batches.find_batch("me", batch.id) == batch
    assert database.batches.save_batch(changed, "w1") == changed
    assert database.take_over(batch.id, "w1", "w2", "batches")
    assert not database.take_over(batch.id, "w1", "w3", "batches")
    assert database.batches.save_batch(batch, "w1") is None
    assert database.batches.list_owned("w1") == [] and database.batches.list_owned("w2") == [("me", changed)]
    assert database.batches.find_batch("you", batch.id) is None


def test_result_of_a_line_stays_and_is_counted_once(database: Database) -> None:
    add_file(database, make_file("a"))
    batch = structs.replace(make_batch("x"), total=3)
    assert database.start_batch("me", batch, "w1")
    lines = [
        BatchLine(number=number, rank=10 - number, start=number * 5, length=5, custom_id=f"r{number}", model=None)
        for number in (1, 2, 3)
    ]
    database.batches.insert_lines(batch.id, "w1", lines)
    database.batches.insert_lines(batch.id, "w1", lines)  # a change may be made twice
    assert database.batches.list_open_lines(batch.id, -1, 2) == [lines[2], lines[1]]
    result = LineResult(number=2, custom_id="r2", status=200, body=b"{}", request_id="req_1")
    assert database.batches.save_result(batch.id, "w2", result, TokenCounts(1, 1, 1, 1)) is None
    saved = database.batches.save_result(batch.id, "w1", result, TokenCounts(4, 3, 2, 1))
    assert saved is not None and (saved.completed, saved.failed, saved.usage) == (1, 0, TokenCounts(4, 3, 2, 1))
    again = structs.replace(result, status=500, body=b"later")
    assert database.batches.save_result(batch.id, "w1", again, TokenCounts(9, 9, 9, 9)) == saved
    failed = LineResult(number=3, custom_id="r3", status=404, body=b"[]", request_id="req_2")
    saved = database.batches.save_result(batch.id, "w1", failed, TokenCounts())
    assert saved is not None and (saved.completed, saved.failed) == (1, 1)
    assert database.batches.list_open_lines(batch.id, -1, 9) == [lines[0]]
    assert database.batches.list_results(batch.id, 0, 9) == [LineResult(number=1, custom_id="r1"), result, failed]
    assert database.batches.list_results(batch.id, 1, 1) == [result]


def test_lines_of_ended_batches_are_purged_in_parts(database: Database) -> None:
    add_file(database, make_file("a"))
    batch = make_batch("x")
    assert database.start_batch("me", batch, "w1")
    database.batches.insert_lines(
        batch.id,
        "w1",
        [
            BatchLine(number=number, rank=number, start=0, length=1, custom_id=str(number), model="m")
            for number in range(5)
        ],
    )
    database.batches.delete_expired(NOW + 1)
    assert not database.batches.has_old_lines()
    assert database.batches.end_batch(batch.with_status("completed", NOW), "w1")
    for num_left in (2, 0):
        assert database.batches.has_old_lines()
        database.batches.purge_lines(3)
        assert len(database.batches.list_results(batch.id, -1, 9)) == num_left
    assert not database.batches.has_old_lines()
    database.batches.delete_expired(NOW)
    assert database.batches.find_batch("me", batch.id) is not None
    database.batches.delete_expired(NOW + 1)
    assert database.batches.find_batch("me", batch.id) is None


def test_first_request_to_cancel_counts(database: Database) -> None:
    add_file(database, make_file("a"))
    batch = make_batch("x")
    assert database.start_batch("me", batch, "w1")
    database.batches.request_cancel(batch.id, NOW + 5)
    database.batches.request_cancel(batch.id, NOW + 9)
    found = database.batches.find_batch("me", batch.id)
    assert found is not None and found.status == "cancelling" and found.status_times == {"cancelling": NOW + 5}
    assert database.batches.end_batch(batch.with_status("failed", NOW), "w1")
    database.batches.request_cancel(batch.id, NOW + 20)
    found = database.batches.find_batch("me", batch.id)
    assert found is not None and found.status == "failed"
