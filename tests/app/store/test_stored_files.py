"""Files in every store: reads for requests, what counts for the size of the store, and how long they are kept."""

import time
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.store.batches.records import FILE_PIECE_BYTES, StoredUpload
from antiphon.app.store.writing.upkeep import UPLOAD_RECORD_S
from antiphon.app.store.writing.write_ops import StoreTimings
from tests.app.store.store_helpers import NOW, AnyPlace, StorePlace, add_file, add_log, becomes_true

MAX_BYTES = 64 << 20


async def test_content_is_read_for_a_request(any_place: AnyPlace) -> None:
    async with any_place.open() as store:
        for size in (0, 1, FILE_PIECE_BYTES, FILE_PIECE_BYTES + 1, 3 * FILE_PIECE_BYTES + 5):
            content = (b"0123456" * (size // 7 + 1))[:size]
            file = await add_file(store, str(size), content, media_type="image/png")
            for file_id in (file.id, file.id.replace("-", "_")):
                assert await store.read_file_bytes("me", file_id, NOW, MAX_BYTES) == (file, content)
        assert await store.read_file_bytes("me", file.id, NOW, file.size - 1) == (file, None), "too large, but there"
        assert await store.read_file_bytes("me", file.id, NOW, file.size) == (file, content)


@pytest.mark.parametrize(
    "file_id", ["", "x", "file-none", "file_", "file-' OR 1", "file-a\0", "part_1", "file-" + "a" * 200]
)
async def test_unknown_id_has_no_content(any_place: AnyPlace, file_id: str) -> None:
    async with any_place.open() as store:
        await add_file(store, "a")
        assert await store.read_file_bytes("me", file_id, NOW, MAX_BYTES) is None


async def test_file_that_does_not_exist_for_the_owner_has_no_content(any_place: AnyPlace) -> None:
    async with any_place.open() as store:
        await add_file(store, "incomplete", is_complete=False)
        await add_file(store, "part", upload_id="upload_1")
        await add_file(store, "expired", expires_at=NOW)
        await add_file(store, "later", expires_at=NOW + 1)
        deleted = await add_file(store, "deleted")
        assert await store.change(lambda database: database.delete_unused_file(deleted.id))
        found = {
            name: await store.read_file_bytes("me", f"file-{name}", NOW, MAX_BYTES) is not None
            for name in ("incomplete", "part", "expired", "deleted", "later")
        }
        assert found == {**dict.fromkeys(("incomplete", "part", "expired", "deleted"), False), "later": True}
        assert await store.read_file_bytes("you", "file-later", NOW, MAX_BYTES) is None


async def test_file_that_is_deleted_while_it_is_read_has_no_content(
    any_place: AnyPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with any_place.open() as store:
        file = await add_file(store, "a", bytes(3 * FILE_PIECE_BYTES))
        read, num_reads = store.read, 0

        async def read_slowly(query: Any) -> Any:
            nonlocal num_reads
            num_reads += 1
            if num_reads == 3:  # the row, the first piece, now the second one

                def delete(database: Any) -> None:
                    database.files.delete_file(file.id)
                    database.files.purge_pieces(100)

                await store.change(delete)
            return await read(query)

        monkeypatch.setattr(store, "read", read_slowly)
        assert await store.read_file_bytes("me", file.id, NOW, MAX_BYTES) is None and num_reads >= 3


async def test_files_count_for_the_size_of_the_store_but_those_of_batches_do_not(any_place: AnyPlace) -> None:
    async with any_place.open() as store:
        await add_log(store, "old", created=NOW).wait_published()
        await add_log(store, "new", created=NOW + 1).wait_published()
        size = store.debug.database.query_rows("SELECT sum(size) FROM responses")[0][0]
        await add_file(store, "batch", bytes(100_000), purpose="batch")
        await add_file(store, "output", bytes(100_000), purpose="batch_output")
        assert store.debug.database.files.count_kept_bytes() == 0
        await add_file(store, "kept", bytes(10_000))
        counted = store.debug.database.files.count_kept_bytes()
        assert 10_000 < counted < 12_000
        await store.change(lambda database: database.delete_expired(0, size + counted))
        assert store.debug.database.find_log("me", "resp_old") is not None
        await store.change(lambda database: database.delete_expired(0, size + counted - 1))
        assert store.debug.database.find_log("me", "resp_old") is None
        assert store.debug.database.find_log("me", "resp_new") is not None
        assert await store.read_file_bytes("me", "file-kept", NOW, MAX_BYTES) is not None, "no file is evicted"


async def test_files_of_all_owners_have_half_of_the_store(any_place: AnyPlace) -> None:
    async with any_place.open(max_bytes=4 * FILE_PIECE_BYTES) as store:
        await add_file(store, "batch", bytes(3 * FILE_PIECE_BYTES), purpose="batch")
        await add_file(store, "a", bytes(FILE_PIECE_BYTES))
        with pytest.raises(ApiError, match="files of all API keys") as refused:
            await add_file(store, "b", bytes(FILE_PIECE_BYTES))
        assert refused.value.code == "storage_limit_exceeded"


async def test_files_are_deleted_with_responses_of_their_age(any_place: AnyPlace) -> None:
    now = int(time.time())
    async with any_place.open() as store:
        await add_file(store, "old", created_at=now - 1001)
        await add_file(store, "new", created_at=now - 999)
        await add_file(store, "batch", created_at=now - 1001, purpose="batch")
        await add_file(store, "ended", created_at=now - 10, expires_at=now - 1)
        await store.change(lambda database: database.files.delete_older(now - 1000))
        await store.change(lambda database: database.files.delete_expired(now))
        files = await store.read(
            lambda database: database.files.list_files("me", 0, limit=10, after=None, purpose=None, descending=False)
        )
        names = [file.id for file in files or ()]
        assert names == ["file-new", "file-batch"]


async def test_retention_holds_for_files_and_uploads(place: StorePlace) -> None:
    now = int(time.time())
    timings = StoreTimings(heartbeat_s=0.05, sweep_interval_s=0.05, retention_s=1000)
    async with place.open(timings=timings) as store:
        for name, age in (("old", 1100), ("new", 900)):
            await add_file(store, name, created_at=now - age)
        for name, age in (("known", UPLOAD_RECORD_S - 100), ("forgotten", UPLOAD_RECORD_S + 100)):
            upload = StoredUpload(
                id=name, created_at=1, expires_at=now - age, size=1, filename="a", purpose="batch", media_type="",
                file_expires_s=None,
            )  # fmt: skip
            await store.change(lambda database, upload=upload: database.uploads.insert_upload("me", upload))  # type: ignore[misc]
        assert await becomes_true(lambda: store.debug.database.files.find_file("me", "file-old", now) is None)
        assert await becomes_true(lambda: store.debug.database.uploads.find_upload("me", "forgotten") is None)
        assert store.debug.database.files.find_file("me", "file-new", now) is not None
        assert store.debug.database.uploads.find_upload("me", "known") is not None
