"""A client that deletes the entries of a list while it pages reaches each of them: `after` may have been deleted."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import openai
import pytest

from antiphon.app.requests.chat.stored import CompletionsQuery
from antiphon.app.store.base import StoredConversation
from antiphon.app.store.batches.records import StoredBatch
from antiphon.app.store.database import Database
from antiphon.app.store.history import deleted_entries
from antiphon.app.store.history.deleted_entries import DELETED_ENTRY_LIFETIME_S
from antiphon.app.store.store import ResponseStore
from antiphon.app.store.writing.write_ops import StoreTimings
from tests.app.store.store_helpers import (
    AnyPlace,
    MemoryPlace,
    StorePlace,
    add_completion,
    add_file,
    add_log,
    make_items,
)
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

NUM_ENTRIES = 5
KEY = "alice"
HEADERS = {"authorization": f"Bearer {KEY}"}
SCRIPT = [{"name": "all", "output": ["Yes."]}]
LONG_SWEEP = StoreTimings(sweep_interval_s=3600)
CONVERSATION = StoredConversation(id="conv_1", created_at=1, metadata={})


def open_unswept(place: AnyPlace) -> AbstractAsyncContextManager[ResponseStore]:
    """Opens a store that deletes nothing by itself for a while. One in memory has no timings."""
    return place.open() if isinstance(place, MemoryPlace) else place.open(timings=LONG_SWEEP)


@pytest.fixture
def server(place: StorePlace) -> Iterator[RunningServer]:
    with serve(lambda: scripted_registry(SCRIPT), inspect="memory", api_keys=(KEY,), **place.settings()) as running:
        yield running


def empty_files(client: openai.OpenAI, order: Any) -> tuple[list[str], list[str]]:
    """Returns the ids in the order of their creation, and those that the loop has deleted."""
    ids = [client.files.create(file=("a", b"x"), purpose="user_data").id for _ in range(NUM_ENTRIES)]
    return ids, [file.id for file in client.files.list(limit=2, order=order) if client.files.delete(file.id)]


def empty_conversation(client: openai.OpenAI, order: Any) -> tuple[list[str], list[str]]:
    conversation = client.conversations.create().id
    new: Any = [{"type": "message", "role": "user", "content": str(number)} for number in range(NUM_ENTRIES)]
    items = client.conversations.items
    ids = [str(item.id) for item in items.create(conversation, items=new).data]
    listed = [
        str(item.id) for item in items.list(conversation, limit=2, order=order) if delete(items, item, conversation)
    ]
    return ids, listed


def delete(items: Any, item: Any, conversation: str) -> bool:
    return bool(items.delete(item.id, conversation_id=conversation))


def empty_completions(client: openai.OpenAI, order: Any) -> tuple[list[str], list[str]]:
    completions = client.chat.completions
    ids = [
        completions.create(model="scripted", messages=[{"role": "user", "content": "Hi"}], store=True).id
        for _ in range(NUM_ENTRIES)
    ]
    return ids, [each.id for each in completions.list(limit=2, order=order) if completions.delete(each.id)]


@pytest.mark.parametrize("empty", [empty_files, empty_conversation, empty_completions])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_loop_of_the_sdk_deletes_each_entry(
    client: openai.OpenAI, empty: Callable[[openai.OpenAI, Any], tuple[list[str], list[str]]], order: str
) -> None:
    ids, deleted = empty(client, order)
    assert deleted == (ids if order == "asc" else ids[::-1])


@pytest.mark.parametrize("kind", ["stored", "recorded"])
def test_turns_are_deleted_while_a_client_pages(server: RunningServer, kind: str) -> None:
    """Deletes responses, whose summaries go with them, or the records of turns that are not stored."""
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=HANG_TIMEOUT_S) as client:
        body = {"model": "scripted", "input": "Hi", "store": kind == "stored"}
        ids = [client.post("/responses", json=body).json()["id"] for _ in range(NUM_ENTRIES)]
        listed, query = list[str](), {"limit": "2"}
        while True:
            reply = client.get("/inspect/turns", params=query)
            assert reply.status_code == 200, reply.text
            for turn in reply.json()["data"]:
                listed.append(turn["id"])
                path = "responses" if kind == "stored" else "inspect/turns"
                assert client.delete(f"/{path}/{turn['id']}").status_code == 200
            if not reply.json()["has_more"]:
                break
            query["after"] = listed[-1]
        assert listed == ids[::-1]


def test_pages_of_anthropic_continue_behind_a_deleted_file(server: RunningServer, client: openai.OpenAI) -> None:
    ids = [client.files.create(file=("a", b"x"), purpose="user_data").id for _ in range(3)]
    headers = {**HEADERS, "anthropic-version": "2023-06-01"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=HANG_TIMEOUT_S) as other:
        page = other.get("/files", params={"limit": 1}).json()
        assert other.delete(f"/files/{page['data'][0]['id']}").status_code == 200
        reply = other.get("/files", params={"limit": 2, "page": page["next_page"]})
        assert [file["id"].replace("_", "-", 1) for file in reply.json()["data"]] == [ids[1], ids[0]], reply.text


def test_entry_that_never_existed_is_refused(server: RunningServer, client: openai.OpenAI) -> None:
    conversation = client.conversations.create().id
    lists = ("files", "batches", "chat/completions", "inspect/turns", f"conversations/{conversation}/items")
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=HANG_TIMEOUT_S) as other:
        for path, after in itertools.product(lists, ("none", "file-none", "batch_none", "chatcmpl-none", "resp_none")):
            reply = other.get(f"/{path}", params={"after": after})
            assert reply.status_code == 400 and reply.json()["error"]["param"] == "after", path


async def test_batches_are_deleted_while_a_client_pages(any_place: AnyPlace) -> None:
    def insert(database: Database) -> None:
        for number in range(NUM_ENTRIES):
            batch = StoredBatch(
                id=f"batch_{number}", endpoint="/v1/responses", input_file_id="file-1", created_at=number,
                expires_at=number, completion_window="24h",
                metadata={},
                output_expires_s=None,
            )  # fmt: skip
            database.batches.insert_batch("me", batch, "writer")
            database.batches.end_batch(batch, "writer")
        database.batches.purge_lines(100)

    def list_page(database: Database, owner: str = "me") -> list[str] | None:
        page = database.batches.list_batches(owner, limit=2, after="batch_3")
        return None if page is None else [batch.id for batch in page]

    async with open_unswept(any_place) as store:
        await store.change(insert)
        assert await store.read(list_page) == ["batch_2", "batch_1"]
        await store.change(lambda database: database.batches.delete_expired(2))
        assert await store.read(list_page) == ["batch_2"]
        await store.change(lambda database: database.batches.delete_expired(NUM_ENTRIES))
        assert await store.read(list_page) == []
        assert await store.read(lambda database: list_page(database, "you")) is None


async def list_behind(store: ResponseStore, name: str, *, descending: bool = False) -> list[str | None] | None:
    """Returns the ids of the entries behind the one with this name."""
    query = CompletionsQuery(limit=9, after=f"chatcmpl_{name}0", order="desc" if descending else "asc")
    completions = store.list_completions("me", query)
    items = store.history.load_page("me", "conv_1", f"msg_{name}", 9, descending=descending)
    files = await store.read(
        lambda database: database.files.list_files(
            "me", 0, limit=9, after=f"file-{name}", purpose=None, descending=descending
        )
    )
    assert completions is not None and items is not None and files is not None
    names = [each.id[9:-1] for each in completions], [each.id[5:] for each in files]
    assert names[0] == names[1] == [str(item.id)[4:] for item in items.items]
    return list(names[0])


async def test_later_entries_come_behind_the_last_one_that_was_deleted(any_place: AnyPlace) -> None:
    """SQLite gives new rows the positions of the last ones that were deleted."""

    async def add(name: int) -> None:
        await add_completion(store, str(name))
        await add_file(store, str(name))
        await store.add_items("me", "conv_1", make_items([name]))

    async def remove(name: int) -> None:
        assert await store.delete_completion("me", f"chatcmpl_{name}0")
        assert await store.change(lambda database: database.delete_unused_file(f"file-{name}"))
        await store.change(lambda database: database.files.purge_pieces(9))
        assert await store.delete_item("me", "conv_1", f"msg_{name}")

    async with open_unswept(any_place) as store:
        await store.create_conversation("me", CONVERSATION)
        for name in (1, 2, 3, 4):
            await add(name)
        for name in (4, 3, 2):
            await remove(name)
        for name in (5, 6):
            await add(name)
        for name in ("2", "3", "4"):
            assert await list_behind(store, name) == ["5", "6"]
            assert await list_behind(store, name, descending=True) == ["1"]
        for name in (1, 5, 6):
            await remove(name)
        await add(7)
        assert await list_behind(store, "6") == ["7"] and await list_behind(store, "6", descending=True) == []


async def test_running_turn_that_is_deleted_keeps_its_place(any_place: AnyPlace) -> None:
    async with open_unswept(any_place) as store:
        add_log(store, "running", count=2, created=5, background=True)
        await store.change(lambda _: None)
        assert await store.delete_response("me", "resp_running")
        assert await store.read(lambda database: database.summaries.find_deleted("you", "resp_running")) is None
        started = await store.read(lambda database: database.summaries.find_deleted("me", "resp_running"))
        assert started == 5


async def test_places_are_limited_in_number_and_age(any_place: AnyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_entries, "MAX_DELETED_ENTRIES", 3)
    async with open_unswept(any_place) as store:
        for number in range(NUM_ENTRIES):
            await store.change(lambda database, number=number: database.summaries.keep_place("me", str(number), 1.0))  # type: ignore[misc]
        await store.change(lambda database: database.summaries.keep_place("you", "0", 1.0))

        async def list_known(owner: str) -> list[str]:
            names = tuple(map(str, range(NUM_ENTRIES)))
            return await store.read(
                lambda database: [name for name in names if database.summaries.find_deleted(owner, name) is not None]
            )

        def read_time(database: Database) -> float:
            return float(database.query_rows("SELECT max(deleted) FROM deleted_entries")[0][0])

        now = await store.read(read_time)
        await store.change(lambda database: database.deleted_entries.delete_old(now))
        assert await list_known("me") == ["2", "3", "4"] and await list_known("you") == ["0"]
        await store.change(lambda database: database.deleted_entries.delete_old(now + DELETED_ENTRY_LIFETIME_S + 1))
        assert await list_known("me") == await list_known("you") == []
