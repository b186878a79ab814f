"""`kill -9` of a process in the middle of uploads and deletions: no blob without reference, and none without its bytes.

A process adds and deletes responses, conversation items and files with the same few contents, without pause. After each
kill the next process finds a store without faults, once it has ended what the dead one has left.
`ANTIPHON_TEST_FULL=1` kills 200 times.
"""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest

from antiphon.app.store.batches.file_tables import DELETED_OWNER
from antiphon.app.store.database import Database
from tests.app.store.store_helpers import StorePlace
from tests.app.store.stored_blobs import find_faults
from tests.counts import FULL_COUNTS
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.syntax import ROOT

pytestmark = pytest.mark.processes

NUM_KILLS = 200 if FULL_COUNTS else 3
PROGRAM = """
import asyncio, itertools, os, random, sys
sys.path.insert(0, ROOT)
from pathlib import Path
from antiphon.app.options.settings import Settings
from antiphon.app.batches.stored_files import FileWriter
from antiphon.app.store.base import StoredConversation
from antiphon.app.store.batches.records import StoredFile
from antiphon.app.store.factory import open_store
from antiphon.app.turns.stored_history import with_ids
from tests.app.store.test_blobs import add_picture_log, contents_of, picture_message

dice = random.Random(os.urandom(8))
CONTENTS = [bytes([number]) * size for number, size in enumerate((10, 100_000, 1 << 20, (1 << 20) + 5, 3 << 20))]

def choose():
    return dice.sample(CONTENTS, dice.randrange(1, 4))

async def change_responses(store, name):
    for number in itertools.count():
        log = await add_picture_log(store, f"{name}{number}", *choose())
        if dice.random() < 0.8:
            await store.delete_response("me", log.id)

async def change_conversations(store, name):
    for number in itertools.count():
        conversation = f"conv_{name}{number}"
        await store.create_conversation("me", StoredConversation(id=conversation, created_at=1))
        for turn in range(3):
            contents = choose()
            items = with_ids((picture_message(*contents),), f"{conversation}{turn}")
            await store.add_items("me", conversation, items, contents_of(*contents))
            if dice.random() < 0.5:
                await store.delete_item("me", conversation, items[0].id)
        if dice.random() < 0.8:
            await store.delete_conversation("me", conversation)

async def change_files(store, name):
    for number in itertools.count():
        file = StoredFile(
            id=f"file-{name}{number}", created_at=1, expires_at=None, filename="a", purpose="vision",
            upload_id="upload_1" if dice.random() < 0.3 else None,
        )
        writer = FileWriter(store, "me", file)
        await writer.begin()
        await writer.write(dice.choice(CONTENTS))
        await writer.flush()
        if dice.random() < 0.2:
            await writer.discard()
        else:
            await store.change(writer.complete)
            await store.change(lambda database: database.delete_unused_file(file.id))

async def main(path):
    is_url = path.startswith("postgresql:")
    store = open_store(Settings(**({"store_url": path} if is_url else {"store_file": Path(path)})))
    print("ready", flush=True)
    name = os.urandom(4).hex()
    works = (change_responses, change_conversations, change_files)
    await asyncio.gather(*(work(store, f"{name}{number}x") for work in works for number in range(2)))

asyncio.run(main(sys.argv[1]))
"""
FILE_FAULTS = {
    "file without all pieces": """
        SELECT count(*) FROM files WHERE size <> (SELECT coalesce(sum(length(data)), 0) FROM file_pieces
        WHERE file = files.id)""",
    "pieces without file": "SELECT count(*) FROM file_pieces WHERE NOT EXISTS (SELECT 1 FROM files WHERE id = file)",
}


def count_rows(database: Database, query: str) -> int:
    return int(database.query_rows(query)[0][0])


async def becomes_zero(count: Callable[[], int]) -> bool:
    deadline = time.monotonic() + HANG_TIMEOUT_S
    while count() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return count() == 0


@pytest.mark.timeout(300 + 20 * NUM_KILLS)
async def test_kills_leave_no_blob_alone_and_no_reference_without_bytes(place: StorePlace) -> None:
    dice, num_blobs, num_incomplete = random.Random(5), 0, 0
    command = [sys.executable, "-c", PROGRAM.replace("ROOT", repr(str(ROOT))), place.name]
    for number in range(NUM_KILLS):
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            reading = asyncio.create_task(process.stdout.readline())
            await asyncio.to_thread(wait_with_progress, reading.done, "the process did not start", pid=process.pid)
            assert reading.result() == b"ready\n"
            await asyncio.sleep(dice.uniform(0.0, 0.5))
        finally:
            process.kill()
            await process.wait()
        database = place.open_database()
        assert not find_faults(database), f"just after kill {number}"
        num_blobs += count_rows(database, "SELECT count(*) FROM blobs")
        incomplete = "SELECT count(*) FROM files WHERE writer IS NOT NULL"
        num_incomplete += count_rows(database, incomplete)
        async with place.open() as store:
            deleted = f"SELECT count(*) FROM files WHERE owner = '{DELETED_OWNER}'"
            for query in (incomplete, deleted, "SELECT count(*) FROM responses WHERE writer IS NOT NULL"):
                assert await becomes_zero(partial(count_rows, database, query)), query
            faults = [name for name, query in FILE_FAULTS.items() if count_rows(database, query)]
            assert not faults and not find_faults(database), f"after kill {number}"
            if number % 10 == 9:  # the store must not grow for 200 kills
                ids = database.query_rows("SELECT id FROM responses")
                for (response_id,) in ids:
                    await store.delete_response("me", response_id)
        database.close()
    print(f"{NUM_KILLS} kills, {num_blobs} blobs found after them, {num_incomplete} files were incomplete")
    assert num_blobs
