"""Blobs: each is stored once for an owner, as long as a row refers to it, in every store."""

import itertools
import random
import threading
from pathlib import Path

from msgspec import structs

from antiphon.app.requests.chat.stored import ChatMessages
from antiphon.app.store.base import StoredCompletion, StoredConversation
from antiphon.app.store.blobs.blob_tables import BLOB_PIECE_BYTES, BlobHolder
from antiphon.app.store.sqlite.schema import open_memory
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.blob_urls import find_blobs, format_blob_url, refer_to
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.reply_form import ChatForm
from antiphon.app.turns.stored_history import with_ids
from antiphon.events.inputs import InputFile, InputMessage
from tests.app.store.store_helpers import (
    AnyPlace,
    StorePlace,
    make_response,
    make_steps,
    open_test_store,
)
from tests.app.store.stored_blobs import PICTURE, add_picture_log, contents_of, find_faults, picture_message

DOCUMENT = b"%PDF of a letter " * 1000
TABLES = ("blobs", "blob_pieces", "blob_references")


def count_rows(store: ResponseStore) -> tuple[int, ...]:
    """Returns the numbers of rows of `TABLES`."""
    queries = [f"SELECT count(*) FROM {table}" for table in TABLES]
    return tuple(store.debug.database.query_rows(query)[0][0] for query in queries)


async def test_picture_of_50_turns_is_stored_once_until_the_last_one_is_deleted(any_place: AnyPlace) -> None:
    async with any_place.open() as store:
        logs = [await add_picture_log(store, f"r{number}", PICTURE) for number in range(50)]
        assert count_rows(store) == (1, 1, 50)
        sha256 = refer_to(PICTURE, "").sha256
        for log in logs:
            assert await store.read_blob("me", sha256) == PICTURE and not find_faults(store.debug.database)
            assert await store.delete_response("me", log.id)
        assert count_rows(store) == (0, 0, 0) and await store.read_blob("me", sha256) is None


async def test_blob_of_many_pieces_is_read_as_it_was_sent(any_place: AnyPlace) -> None:
    dice = random.Random(1)
    contents = [dice.randbytes(size) for size in (1, BLOB_PIECE_BYTES, BLOB_PIECE_BYTES + 1, 5 * BLOB_PIECE_BYTES)]
    async with any_place.open() as store:
        log = await add_picture_log(store, "a", *contents, b"")
        for content in (*contents, b""):
            assert await store.read_blob("me", refer_to(content, "").sha256) == content
        assert count_rows(store) == (5, 1 + 1 + 2 + 5, 5) and not find_faults(store.debug.database)
        await store.delete_response("me", log.id)
        assert count_rows(store) == (0, 0, 0)


async def test_owners_share_no_blob(any_place: AnyPlace) -> None:
    async with any_place.open() as store:
        await add_picture_log(store, "a", PICTURE)
        sha256 = refer_to(PICTURE, "").sha256
        assert await store.read_blob("you", sha256) is None
        log = await add_picture_log(store, "b", PICTURE, owner="you")
        assert count_rows(store) == (2, 2, 2)
        await store.delete_response("you", log.id)
        assert await store.read_blob("you", sha256) is None and await store.read_blob("me", sha256) == PICTURE


async def test_content_is_known_before_it_is_written(any_place: AnyPlace) -> None:
    async with any_place.open() as store:
        log = EventLog(make_response("a"), "me", (picture_message(PICTURE),), blobs=contents_of(PICTURE))
        log.append_step(make_steps()[0])
        store.add_log(log)
        assert log.blobs and await store.read_blob("me", refer_to(PICTURE, "").sha256) == PICTURE
        for step in make_steps()[1:]:
            log.append_step(step)
        log.end_log()
        await log.wait_published()
        assert not log.blobs, "a log that is in the database keeps none in memory"


async def test_content_that_nobody_sends_makes_no_reference(any_place: AnyPlace) -> None:
    async with any_place.open() as store:
        await add_picture_log(store, "a", PICTURE, sends=False)
        assert count_rows(store) == (0, 0, 0)
        await add_picture_log(store, "b", PICTURE)
        again = await add_picture_log(store, "c", PICTURE, sends=False)
        await store.delete_response("me", "resp_b")
        assert await store.read_blob("me", refer_to(PICTURE, "").sha256) == PICTURE, f"{again.id} refers to it"


async def test_a_stored_response_gets_blobs_until_it_is_deleted(any_place: AnyPlace) -> None:
    reference = refer_to(PICTURE, "image/png")

    async def add(store: ResponseStore, owner: str, response_id: str) -> None:
        contents = {reference.sha256: PICTURE}
        await store.change(lambda database: database.blobs.add_to_response(owner, response_id, (reference,), contents))

    async with any_place.open() as store:
        log = await add_picture_log(store, "a", sends=False)
        await add(store, "other", log.id)
        assert count_rows(store) == (0, 0, 0), "it is not theirs"
        await add(store, "me", log.id)
        assert await store.read_blob("me", reference.sha256) == PICTURE
        await store.delete_response("me", log.id)
        assert count_rows(store) == (0, 0, 0)
        await add(store, "me", log.id)
        assert count_rows(store) == (0, 0, 0), "it has been deleted"


async def test_items_of_conversations_hold_their_blobs(any_place: AnyPlace) -> None:
    async with any_place.open() as store:
        await store.create_conversation("me", StoredConversation(id="conv_1", created_at=1))
        document = InputFile(file_data=format_blob_url(refer_to(DOCUMENT, "application/pdf")), filename="a.pdf")
        items = with_ids((picture_message(PICTURE), InputMessage(role="user", content=(document,))), "items")
        await store.add_items("me", "conv_1", items, contents_of(PICTURE, DOCUMENT))
        await store.add_items("me", "conv_2", items, contents_of(PICTURE))
        assert count_rows(store) == (2, 2, 2), "nothing is added to a conversation that does not exist"
        log = await add_picture_log(store, "a", PICTURE, conversation="conv_1")
        assert count_rows(store) == (2, 2, 4) and not find_faults(store.debug.database)
        await store.delete_response("me", log.id)
        assert await store.delete_item("me", "conv_1", items[0].id or "")
        assert count_rows(store) == (2, 2, 2), "the response has added an item of its own"
        assert await store.delete_item("me", "conv_1", items[1].id or "")
        assert not await store.delete_item("me", "conv_1", items[1].id or "")
        assert count_rows(store) == (1, 1, 1) and not find_faults(store.debug.database)
        await store.delete_conversation("me", "conv_1")
        assert count_rows(store) == (0, 0, 0)


async def test_messages_of_chat_completions_hold_their_blobs(any_place: AnyPlace) -> None:
    url = format_blob_url(refer_to(PICTURE, "image/png"))
    messages: ChatMessages = (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_data": url}}]},
    )
    ids = ("chatcmpl_a0", "chatcmpl_a1")
    async with any_place.open() as store:
        responses = [structs.replace(make_response("a"), id=choice_id) for choice_id in ids]
        logs = [EventLog(response, "me", keeps_details=True, blobs=contents_of(PICTURE)) for response in responses]
        completion = StoredCompletion(id=ids[0], created_at=1, model="m", metadata={}, choice_ids=ids, form=ChatForm())
        for log in logs:
            log.append_step(make_steps()[0])
        store.add_completion(completion, messages, logs)
        for log in logs:
            for step in make_steps()[1:]:
                log.append_step(step)
            log.end_log()
            await log.wait_published()
        assert store.completion_messages("me", ids[0]) == messages
        assert count_rows(store) == (1, 1, 1) and not find_faults(store.debug.database)
        assert await store.read_blob("me", refer_to(PICTURE, "").sha256) == PICTURE
        assert await store.delete_completion("me", ids[0])
        assert count_rows(store) == (0, 0, 0)


async def test_another_server_reads_the_blobs_of_a_response(place: StorePlace) -> None:
    async with place.open() as first, place.open() as second:
        log = await add_picture_log(first, "a", PICTURE, DOCUMENT)
        found = await second.read_log("me", log.id)
        assert found is not None
        references = list(find_blobs(found.input_items))
        assert [await second.read_blob("me", each.sha256) for each in references] == [PICTURE, DOCUMENT]
        assert [each.media_type for each in references] == ["image/png"] * 2
    async with place.open() as store:
        assert await store.read_blob("me", references[0].sha256) == PICTURE, "also after a restart"
        assert count_rows(store) == (2, 2, 2)
        assert await store.delete_response("me", log.id) and count_rows(store) == (0, 0, 0)


async def test_blobs_count_for_the_limit_of_the_store(any_place: AnyPlace) -> None:
    """A blob counts once, and as long as a response has it; one that only a conversation has does not."""
    dice = random.Random(2)
    shared, single = dice.randbytes(300_000), [dice.randbytes(200_000) for _ in range(3)]
    async with any_place.open() as store:
        await store.create_conversation("me", StoredConversation(id="conv_1", created_at=1))
        items = with_ids((picture_message(single[0]),), "items")
        await store.add_items("me", "conv_1", items, contents_of(single[0]))
        assert store.debug.database.blobs.count_bytes() == 0
        for age, content in enumerate(single):
            await add_picture_log(store, f"r{age}", shared, content, created=2_000_000_000 + age)
        assert store.debug.database.blobs.count_bytes() == 900_000

        async def names_after(max_bytes: int) -> list[str]:
            await store.change(lambda database: database.delete_expired(0, max_bytes))
            store.debug.logs.recent.clear()
            ids = [f"resp_r{age}" for age in range(3)]
            return [each for each in ids if store.debug.database.find_log("me", each) is not None]

        def size_of_rows() -> int:
            rows = int(store.debug.database.query_rows("SELECT sum(size) FROM responses")[0][0])
            return rows + store.debug.database.conversations.count_row_bytes(None)

        rows = size_of_rows()
        assert await names_after(900_000 + rows) == ["resp_r0", "resp_r1", "resp_r2"]
        assert await names_after(899_999 + rows) == ["resp_r1", "resp_r2"], "one byte too many costs one response"
        assert store.debug.database.blobs.count_bytes() == 700_000
        assert await store.read_blob("me", refer_to(single[0], "").sha256) == single[0], "the conversation has it"
        others = store.debug.database.conversations.count_row_bytes(None)
        assert await names_after(500_000 + others + (size_of_rows() - others) // 2) == ["resp_r2"]
        assert await names_after(0) == [] and count_rows(store) == (1, 1, 1) and not find_faults(store.debug.database)


def read_files(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir())


async def test_deleted_blob_is_gone_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    secret = b"secret picture " * 100_000
    async with open_test_store(path) as store:
        log = await add_picture_log(store, "a", secret)
        await add_picture_log(store, "b", PICTURE)
        store.debug.database.query_rows("PRAGMA wal_checkpoint(TRUNCATE)")
        assert b"secret picture" in read_files(tmp_path)
        await store.delete_response("me", log.id)
    assert b"secret picture" not in read_files(tmp_path) and PICTURE[:500] in read_files(tmp_path)


async def test_damaged_blob_is_none(place: StorePlace) -> None:
    async with place.open() as store:
        await add_picture_log(store, "a", PICTURE, DOCUMENT)
        place.read_rows("UPDATE blob_pieces SET data = 'x' WHERE length(data) < 15000")
        sha256s = [refer_to(content, "").sha256 for content in (PICTURE, DOCUMENT)]
        contents = [await store.read_blob("me", sha256) for sha256 in sha256s]
        assert sorted(content is None for content in contents) == [False, True]


def test_tables_without_row_ids_begin_with_their_primary_keys() -> None:
    """Else `PRAGMA quick_check` of SQLite 3.40 finds null values in them, and the file would be moved aside."""
    connection = open_memory()
    tables = connection.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%WITHOUT ROWID%'").fetchall()
    for (table,) in tables:
        keys = [row[5] for row in connection.execute(f"PRAGMA table_info({table})")]
        num_keys = sum(key > 0 for key in keys)
        assert keys[:num_keys] == list(range(1, num_keys + 1)), table
    assert tables
    connection.close()


async def test_two_servers_add_and_delete_the_same_blobs(place: StorePlace) -> None:
    """Transactions of two connections on three blobs, in any order: no reference without a blob, no blob without one."""
    async with place.open():
        pass
    contents = [bytes([number]) * 10 for number in range(3)]
    failures: list[BaseException] = []

    def run(writer: str, seed: int) -> None:
        dice, database, numbers = random.Random(seed), place.open_database(), itertools.count()
        held: list[str] = []
        try:
            for _ in range(150):
                chosen = [refer_to(each, "image/png") for each in dice.sample(contents, dice.randrange(1, 4))]
                try:
                    database.begin(sync=False)
                    if held and dice.random() < 0.5:
                        database.blobs.delete_references(held.pop(dice.randrange(len(held))))
                    else:
                        name = f"{writer}{next(numbers)}"
                        database.blobs.add_references(
                            BlobHolder("me", "response", name), chosen, contents_of(*contents)
                        )
                        held.append(name)
                    database.commit()
                except Exception as error:
                    database.rollback()
                    if "deadlock" not in str(error):
                        raise
            for name in held:
                database.begin(sync=False)
                database.blobs.delete_references(name)
                database.commit()
        except BaseException as error:  # noqa: BLE001  # shown by the test
            failures.append(error)
        finally:
            database.close()

    database = place.open_database()
    threads = [threading.Thread(target=run, args=(name, seed)) for seed, name in enumerate("ab")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = [each for each in find_faults(database) if "does not exist" not in each]
        assert not found, found
    assert not failures
    assert [database.query_rows(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES] == [0] * 3
    database.close()
