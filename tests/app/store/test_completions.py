"""Chat completions in every store: they exist from the end of their choices on, and are kept and deleted as a whole."""

import sqlite3
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path

import pytest

from antiphon.app.requests.chat.stored import CompletionsQuery
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.store.store import ResponseStore
from antiphon.app.store.writing.write_ops import StoreTimings
from antiphon.app.turn_types.step_detail import PromptDetail, ScoredToken, TokenDetail
from tests.app.store.store_helpers import (
    SqlitePlace,
    StorePlace,
    add_completion,
    add_log,
    make_steps,
    open_test_store,
)

DETAIL = TokenDetail(
    tokens=(1, 2),
    logprobs=(ScoredToken(1, "a", -inf, 0, ((2, "b", -0.5), (3, "bytes:\\xe2", -inf))),),
    prompt=PromptDetail(tokens=(7,), text="Hi", logprobs=(ScoredToken(7, "Hi", None, 0),)),
    stop_string="END",
    input_tokens=1,
)
LONG_SWEEP = StoreTimings(sweep_interval_s=3600)
"""The tests delete expired responses themselves."""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ResponseStore]:
    if request.param == "memory":
        memory_store = MemoryStore()
        yield memory_store
        await memory_store.close()
        return
    is_file = request.param == "sqlite"
    place = SqlitePlace(tmp_path / "responses.db") if is_file else request.getfixturevalue("postgres_place")
    async with place.open() as store:
        yield store


def list_ids(store: ResponseStore, owner: str = "me", **query: object) -> list[str]:
    listed = store.list_completions(owner, CompletionsQuery(**{"limit": 10, **query}))  # type: ignore[arg-type]
    assert listed is not None
    return [completion.id for completion in listed]


async def test_completion_exists_from_the_end_of_all_its_choices_on(store: ResponseStore) -> None:
    completion = await add_completion(store, "a", counts=(4, 2))
    assert store.find_completion("me", completion.id) is None and list_ids(store) == []
    log = await store.read_log("me", completion.choice_ids[1])
    assert log is not None
    for step in make_steps()[2:]:
        log.append_step(step)
    log.end_log()
    await log.wait_published()
    assert store.find_completion("me", completion.id) == completion and list_ids(store) == [completion.id]
    assert store.completion_messages("me", completion.id) == ({"role": "user", "content": "a"},)


async def test_completion_exists_for_its_owner_only(store: ResponseStore) -> None:
    completion = await add_completion(store, "a", metadata={"a": "1"})
    assert store.find_completion("you", completion.id) is None and list_ids(store, "you") == []
    assert store.completion_messages("you", completion.id) == ()
    await store.change(lambda database: database.completions.save_metadata("you", completion.id, {}))
    assert not await store.delete_completion("you", completion.id)
    assert store.find_completion("me", completion.id) == completion


async def test_list_is_in_order_of_creation(store: ResponseStore) -> None:
    late = await add_completion(store, "late", created=2_000_000_002)
    ids = [(await add_completion(store, name, created=2_000_000_001)).id for name in ("c", "a", "b")] + [late.id]
    assert list_ids(store) == ids and list_ids(store, order="desc") == ids[::-1]
    assert list_ids(store, after=ids[1], limit=1) == [ids[2]] and list_ids(store, after=ids[1]) == ids[2:]
    assert list_ids(store, after=ids[2], order="desc") == [ids[1], ids[0]]
    await store.delete_completion("me", ids[2])
    assert list_ids(store) == [ids[0], ids[1], ids[3]]


async def test_list_is_selected_by_model_and_metadata(store: ResponseStore) -> None:
    odd = {'a"b': "1", "c": 'x","d":"1', "\0": "\u20ac"}
    first, second = (
        await add_completion(store, "a", metadata=odd),
        await add_completion(store, "b", metadata={"c": "x"}),
    )
    assert list_ids(store, metadata=odd) == [first.id] and list_ids(store, metadata={"c": "x"}) == [second.id]
    for key, value in odd.items():
        assert list_ids(store, metadata={key: value}) == [first.id], key
    for metadata in ({"b": "1"}, {"d": "1"}, {"c": "1"}, {"c": ""}, {"": "x"}, {**odd, "c": "x"}):
        assert list_ids(store, metadata=metadata) == [], metadata
    assert list_ids(store, model="m", metadata={"c": "x"}) == [second.id] and list_ids(store, model="n") == []


async def test_deletion_removes_all_choices(store: ResponseStore) -> None:
    kept, completion = await add_completion(store, "kept"), await add_completion(store, "a")
    assert await store.delete_completion("me", completion.id)
    assert not await store.delete_completion("me", completion.id)
    assert [await store.read_log("me", choice_id) for choice_id in completion.choice_ids] == [None, None]
    assert store.completion_messages("me", completion.id) == () and list_ids(store) == [kept.id]


# Retention and limits


async def test_expired_completion_is_deleted_as_a_whole(place: StorePlace) -> None:
    async with place.open(timings=LONG_SWEEP) as store:
        await add_completion(store, "old", created=1)
        await add_completion(store, "running", created=1, counts=(4, 2))
        kept = await add_completion(store, "new")
        delete_expired(place, before=1000)
        assert list_ids(store) == [kept.id]
    rows = place.read_rows("SELECT response FROM chat_choices ORDER BY response")
    assert [row[0] for row in rows] == [f"chatcmpl_{name}{n}" for name in ("new", "running") for n in (0, 1)]
    assert place.read_rows("SELECT count(*) FROM responses") == [(4,)]


async def test_full_store_deletes_no_completion_with_a_running_choice(place: StorePlace) -> None:
    async with place.open(timings=LONG_SWEEP) as store:
        running = await add_completion(store, "running", created=1, counts=(4, 2))
        await add_completion(store, "ended", created=2)
        delete_expired(place, before=0, most=0)
        assert list_ids(store) == []
        database = place.open_database()
        assert [database.find_writer(choice_id) for choice_id in running.choice_ids] == [None, store.name]
        assert database.load_entries(running.choice_ids[0]) != []
        database.close()


def delete_expired(place: StorePlace, *, before: int, most: int = 2**40) -> None:
    database = place.open_database()
    database.begin(sync=False)
    database.delete_expired(before, most)
    database.commit()
    database.close()


# Restarts and damage


async def test_completion_of_a_killed_server_is_not_found(place: StorePlace) -> None:
    async with place.open() as store:
        completion = await add_completion(store, "a", counts=(4, 2))
        kept = await add_completion(store, "b")
    # As if the server had stopped before it stored the second choice.
    place.read_rows(f"DELETE FROM responses WHERE id = '{completion.choice_ids[1]}'")
    async with place.open() as store:
        assert list_ids(store) == [kept.id]
        assert store.find_completion("me", completion.id) is None


@pytest.mark.parametrize("column", ["metadata", "form"])
async def test_unreadable_completion_is_not_found_and_the_others_are(column: str, tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    async with open_test_store(path) as store:
        bad, good = await add_completion(store, "bad"), await add_completion(store, "good", metadata={"a": "1"})
    with sqlite3.connect(path) as connection:
        statement = f"UPDATE chat_completions SET {column} = ? WHERE id = ?"
        connection.execute(statement, (b"\xff{broken", bad.id))
    connection.close()
    async with open_test_store(path) as store:
        assert list_ids(store) == [good.id] == list_ids(store, metadata={"a": "1"})
        assert store.find_completion("me", bad.id) is None


async def test_details_of_choices_are_read_back(place: StorePlace) -> None:
    async with place.open() as store:
        completion = await add_completion(store, "a", detail=DETAIL)
        log = await store.read_log("me", completion.id)
        assert log is not None and [entry.detail for entry in log.entries].count(DETAIL) == 3
        await add_log(store, "b").wait_published()
    async with place.open() as store:
        found, response = await store.read_log("me", completion.id), await store.read_log("me", "resp_b")
        assert found is not None and found.entries == log.entries
        assert response is not None and all(entry.detail is None for entry in response.entries)
    sizes = dict(place.read_rows("SELECT id, size FROM responses"))
    assert sizes[completion.id] > found.size > 0, "details count towards the size of the store"


async def test_second_process_reads_completions_of_the_first(place: StorePlace) -> None:
    async with place.open() as store, place.open() as other:
        completion = await add_completion(store, "a")
        assert list_ids(other) == [completion.id]
        await other.change(lambda database: database.completions.save_metadata("me", completion.id, {"b": "2"}))
        found = store.find_completion("me", completion.id)
        assert found is not None and found.metadata == {"b": "2"} and list_ids(store, metadata={"b": "2"})
        await other.delete_completion("me", completion.id)
        assert list_ids(store) == [] and store.find_completion("me", completion.id) is None


async def test_responses_are_no_completions(store: ResponseStore) -> None:
    await add_log(store, "a").wait_published()
    assert list_ids(store) == [] and store.find_completion("me", "resp_a") is None
