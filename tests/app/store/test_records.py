"""Records of turns in the store, over SQLite and PostgreSQL: what is kept, found elsewhere, shared, freed, and never
written."""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.inspection import record_rows
from antiphon.app.store.database import Database
from antiphon.app.store.history.record_tables import RecordTables
from antiphon.app.turn_types.continuation import RecordBlock, RecordRow
from tests.app.inspection.inspector import SCRIPT, TOOLS, Inspector
from tests.app.store.store_helpers import PostgresPlace, StorePlace, read_uses
from tests.postgres_server import PostgresServer
from tests.progress import wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve

PARTS = ("/events", "/prompt", "/grammar", "/request", "/findings", "/readings/chat", "/export/script")
MARKER = "kwyjibo-7f3a"


@pytest.fixture
def server(place: StorePlace) -> Iterator[RunningServer]:
    with serve(lambda: scripted_registry(SCRIPT), inspect="store", **place.settings()) as running:
        yield running


@pytest.fixture
def inspector(server: RunningServer) -> Iterator[Inspector]:
    with Inspector(server) as opened:
        yield opened


def read_parts(inspector: Inspector, turn_id: str) -> dict[str, Any]:
    """Returns all parts of a turn. The time at which its last step was durable is known where it ran only."""
    record = inspector.get(f"/turns/{turn_id}").json()
    del record["times_ms"]["durable"]
    return {"": record} | {part: inspector.get(f"/turns/{turn_id}{part}").text for part in PARTS}


def test_record_is_found_after_a_restart_and_at_another_server(place: StorePlace) -> None:
    options = {"inspect": "store", **place.settings()}
    with serve(SCRIPT, **options) as server, Inspector(server) as first:
        turn_id = first.ask("Search", tools=TOOLS, tool_choice="required", temperature=0.5, store=True)
        recorder = server.context.turn_manager.recorder
        assert recorder is not None and recorder.find("", turn_id) is None, "it is in the store only"
        shown = read_parts(first, turn_id)
        record = first.get(f"/turns/{turn_id}").json()
        assert record["recorded"] and record["rounds"][0]["sampling"]["temperature"] == 0.5
        assert record["rounds"][0]["has_grammar"] and "find" in shown["/grammar"]
        ends = [row for row in first.lines(f"/turns/{turn_id}/events") if "state" in row]
        assert ends[-1]["state"] == "ENDED" and ends[-1]["at_us"] > 0
        with serve(SCRIPT, **options) as other, Inspector(other) as second:
            assert read_parts(second, turn_id) == shown
            [listed] = second.get("/turns").json()["data"]
            assert listed["id"] == turn_id and listed["recorded"]
    with serve(SCRIPT, **place.settings(), inspect="off") as server, Inspector(server) as last:
        assert read_parts(last, turn_id) == shown


def test_blocks_are_shared_and_freed_with_their_last_user(inspector: Inspector, place: StorePlace) -> None:
    text = "Tell me everything about it. " * 100
    first, second = (inspector.ask(text + end, store=True) for end in ("a", "b"))
    uses = read_uses(place)
    shared = [number for number in uses.values() if number == 2]
    assert len(shared) >= 5 and len(uses) == len(shared) + 2, "the prompts differ in their last blocks"
    inspector.client.delete(f"/v1/responses/{first}")
    assert set(read_uses(place).values()) == {1} and len(read_uses(place)) == len(shared) + 1
    assert "everything" in "".join(text for run in inspector.lines(f"/turns/{second}/prompt") for text in run["texts"])
    inspector.client.delete(f"/v1/responses/{second}")
    assert read_uses(place) == {} and place.read_rows("SELECT id FROM turn_records") == []


def test_grammar_of_many_turns_is_kept_once(inspector: Inspector, place: StorePlace) -> None:
    for _ in range(3):
        inspector.ask("Search", tools=TOOLS, tool_choice="required", store=True)
    assert 3 in read_uses(place).values()
    assert len(place.read_rows("SELECT key FROM prompt_blocks")) == 2, "the prompt, and the grammar"


def test_deleted_record_is_gone_and_its_response_is_not(inspector: Inspector, place: StorePlace) -> None:
    turn_id = inspector.ask(store=True)
    assert inspector.client.delete(f"/v1/inspect/turns/{turn_id}").json()["deleted"]
    assert not inspector.client.delete(f"/v1/inspect/turns/{turn_id}").json()["deleted"]
    assert inspector.get(f"/turns/{turn_id}").json()["rounds"]["missing"].startswith("This turn was not recorded")
    assert inspector.client.get(f"/v1/responses/{turn_id}").status_code == 200
    assert read_uses(place) == {}


def test_turn_that_is_forgotten_while_it_runs_is_not_recorded(inspector: Inspector, place: StorePlace) -> None:
    body = {"model": "scripted", "input": "Wait", "background": True}
    turn_id = inspector.client.post("/v1/responses", json=body).json()["id"]
    assert inspector.get(f"/turns/{turn_id}").json()["recorded"]
    assert inspector.client.delete(f"/v1/inspect/turns/{turn_id}").json()["deleted"]
    inspector.client.post(f"/v1/responses/{turn_id}/cancel")
    wait_with_progress(lambda: inspector.get("/turns").json()["data"][0]["status"] == "cancelled", "the turn ends")
    assert place.read_rows("SELECT id FROM turn_records") == []


def test_evicted_responses_take_their_records_with_them(place: StorePlace) -> None:
    with serve(SCRIPT, inspect="store", **place.settings()) as server, Inspector(server) as inspector:
        for number in range(3):
            inspector.ask(f"question {number} " * 80, store=True)
        assert len(place.read_rows("SELECT id FROM turn_records")) == 3
    place.read_rows("UPDATE responses SET created = created - 100000000")
    with serve(SCRIPT, inspect="store", **place.settings()):
        wait_with_progress(lambda: not place.read_rows("SELECT id FROM responses"), "the responses are evicted")
    assert read_uses(place) == {} and place.read_rows("SELECT id FROM turn_records") == []


def test_size_of_the_store_counts_records_and_blocks(inspector: Inspector, place: StorePlace) -> None:
    noise = random.Random(7).randbytes(3_000).hex()
    inspector.ask(noise, store=True)
    [(size, record)] = place.read_rows(
        "SELECT size, (SELECT length(data) FROM turn_records WHERE turn_records.id = responses.id) FROM responses"
    )
    parts = "length(data) + coalesce(length(detail), 0) + coalesce(length(journal), 0)"
    events = place.read_rows(f"SELECT sum({parts}) FROM events")[0][0]
    items = place.read_rows("SELECT length(input_items) FROM responses")[0][0]
    assert record > 0 and size == events + items + record
    database = place.open_database()
    [(blocks,)] = place.read_rows("SELECT sum(length(data)) FROM prompt_blocks")
    assert database.records.count_bytes() == blocks > 2_000
    database.close()


def test_each_choice_of_a_chat_completion_has_its_record(inspector: Inspector, place: StorePlace) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "n": 2, "store": True}
    completion = inspector.client.post("/v1/chat/completions", json=body).json()
    assert len(place.read_rows("SELECT id FROM turn_records")) == 2
    assert all(each["recorded"] for each in inspector.get("/turns").json()["data"])
    assert inspector.client.delete(f"/v1/chat/completions/{completion['id']}").status_code == 200
    assert read_uses(place) == {} and place.read_rows("SELECT id FROM turn_records") == []


def test_text_is_searched_in_the_requests_of_the_store(inspector: Inspector) -> None:
    wanted = [inspector.ask(f"A Needle {number}", store=True) for number in range(3)]
    inspector.ask("Hay", store=True)
    unstored = inspector.ask("another needle")
    found = inspector.get("/turns", text="needle").json()
    assert [each["id"] for each in found["data"]] == [unstored, *wanted[::-1]] and found["searched"] == 1_000
    page = inspector.get("/turns", text="NEEDLE", limit=2).json()
    assert [each["id"] for each in page["data"]] == [unstored, wanted[2]] and page["has_more"]
    page = inspector.get("/turns", text="NEEDLE", limit=2, after=wanted[2]).json()
    assert [each["id"] for each in page["data"]] == [wanted[1], wanted[0]] and not page["has_more"]


def test_record_that_cannot_be_packed_ends_no_turn(
    inspector: Inspector, place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_rows, "pack_record", lambda _: 1 / 0)
    turn_id = inspector.ask(store=True)
    assert inspector.client.get(f"/v1/responses/{turn_id}").json()["status"] == "completed"
    assert place.read_rows("SELECT id FROM turn_records") == []


@pytest.mark.parametrize("statement", ["UPDATE turn_records SET data = {}", "DELETE FROM prompt_blocks"])
def test_damaged_record_is_missing(inspector: Inspector, place: StorePlace, statement: str) -> None:
    turn_id = inspector.ask(store=True)
    place.read_rows(statement.format(place.quote_bytes("damage")))
    record = inspector.get(f"/turns/{turn_id}").json()
    assert record["rounds"] == {"missing": "The record of this turn is damaged."}
    assert inspector.get(f"/turns/{turn_id}/events").status_code == 200
    assert inspector.get("/turns", text="nothing").json()["data"] == []


def test_changed_byte_in_a_stored_event_is_a_finding(place: StorePlace) -> None:
    options = {"inspect": "store", **place.settings()}
    with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
        turn_id = inspector.ask("Search", tools=TOOLS, store=True)
        found = inspector.get(f"/turns/{turn_id}/findings").json()
        assert found["data"] == [] and found["replay"] == {"checked": True, "reason": None}
    rows = place.read_rows("SELECT number, data FROM events ORDER BY number")
    number, data = next((number, bytes(data)) for number, data in rows if b'"delta":"' in data)
    changed = data.replace(b'"delta":"', b'"delta":"X').decode().replace("'", "''")
    place.read_rows(f"UPDATE events SET data = {place.quote_bytes(changed)} WHERE number = {number}")
    with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
        found = inspector.get(f"/turns/{turn_id}/findings").json()
        [replay] = [each for each in found["data"] if each["code"] == "replay"]
        assert (replay["event"], replay["level"], replay["subject"]) == (number, "error", "delta")
        assert replay["actual"] == replay["expected"].replace('"', '"X', 1)


@pytest.mark.parametrize(
    "statement", ["DELETE FROM events WHERE number = 4", "UPDATE events SET data = {} WHERE number = 4"]
)
def test_damaged_log_is_shown_up_to_the_damage(place: StorePlace, statement: str) -> None:
    options = {"inspect": "store", **place.settings()}
    with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
        turn_id = inspector.ask("Search", tools=TOOLS, store=True)
        events = inspector.lines(f"/turns/{turn_id}/events")
    place.read_rows(statement.format(place.quote_bytes("{")))
    with serve(SCRIPT, **options) as server, Inspector(server) as inspector:
        assert inspector.client.get(f"/v1/responses/{turn_id}").status_code == 404
        assert inspector.lines(f"/turns/{turn_id}/events") == events[:4]
        assert inspector.lines(f"/turns/{turn_id}/events", follow="true") == events[:4]
        found = inspector.get(f"/turns/{turn_id}/findings").json()
        assert (found["data"][0]["code"], found["data"][0]["event"]) == ("damaged-log", 4)
        assert not found["replay"]["checked"]
        assert inspector.get(f"/turns/{turn_id}").json()["ending"]["cause"] == "stop_token"
        assert inspector.get(f"/turns/{turn_id}/request").status_code == 200
        assert inspector.get(f"/turns/{turn_id}/readings/chat").status_code == 200
        assert inspector.get(f"/turns/{turn_id}/export/cassette").status_code == 200


def test_turn_that_is_not_stored_is_in_no_table_and_no_file(
    place: StorePlace, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its marker is in the prompt, in the output and in the arguments of a call, and only the memory shows it."""
    call = f'<tool_call>\n{{"name": "find", "arguments": {{"a": "{MARKER}"}}}}\n</tool_call>'
    script = [{"name": "only", "output": [f"I say {MARKER}.\n", call], "tokens_per_chunk": 4}]
    with serve(script, inspect="store", **place.settings()) as server, Inspector(server) as inspector:
        turn_id = inspector.ask(f"Do not store {MARKER}", tools=TOOLS, store=False)
        assert all(
            MARKER in "".join(inspector.get(f"/turns/{turn_id}{part}").text.split()) for part in ("/events", "/request")
        )
        prompt = "".join(text for run in inspector.lines(f"/turns/{turn_id}/prompt") for text in run["texts"])
        assert MARKER in prompt
        inspector.client.post("/v1/responses", json={"model": "scripted", "input": "stored-too", "tools": TOOLS})
        assert find_text(place, "stored-too", tmp_path, request), "what is stored is found"
        assert not find_text(place, MARKER.replace("kwyjibo", "Do not store kwyjibo"), tmp_path, request)
        ids = [row[0] for row in place.read_rows("SELECT id FROM turn_records")]
        assert len(ids) == 1 and turn_id not in ids
    assert not find_text(place, f"store {MARKER}", tmp_path, request)
    assert turn_id not in [row[0] for row in place.read_rows("SELECT id FROM turn_summaries")]


def find_text(place: StorePlace, text: str, folder: Path, request: pytest.FixtureRequest) -> bool:
    """Tells whether a text is in a file of the store, or in what is compressed there."""
    if isinstance(place, PostgresPlace):
        place.read_rows("CHECKPOINT")
        server: PostgresServer = request.getfixturevalue("postgres_server")
        folder = server.folder
    contents = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # the server deletes some meanwhile
            contents.append(path.read_bytes())
    assert contents
    raw = b"".join(contents)
    packed = b""
    database = place.open_database()
    for turn_id, owner in place.read_rows("SELECT id, owner FROM turn_records"):
        row = database.records.find(owner, turn_id)
        assert row is not None
        packed += record_rows.read_stored_request(row.data)
    database.close()
    return text.encode() in raw or text.encode() in packed


def make_row(name: str, *keys: int) -> RecordRow:
    return RecordRow(name.encode(), tuple(RecordBlock(bytes([key]) * 16, bytes([key]) * 100) for key in keys))


def write(database: Database, *inserted: tuple[str, RecordRow], deleted: tuple[str, ...] = ()) -> None:
    database.begin(sync=False)
    for name, row in inserted:
        database.records.insert("me", name, row)
    for name in deleted:
        database.records.delete(name)
    database.commit()


async def test_transaction_that_is_rolled_back_changes_no_block(place: StorePlace) -> None:
    async with place.open():
        pass
    database = place.open_database()
    database.begin(sync=False)
    database.records.insert("me", "a", make_row("a", 1, 2))
    database.rollback()
    write(database, ("b", make_row("b", 2, 3)))
    assert set(read_uses(place)) == {bytes([2]) * 16, bytes([3]) * 16}
    assert database.records.find("me", "b") == make_row("b", 2, 3)
    assert database.records.find("you", "b") is None and database.records.find("me", "a") is None
    write(database, ("c", make_row("c", 3, 3)), deleted=("b", "unknown"))
    assert read_uses(place) == {bytes([3]) * 16: 2}
    write(database, ("d", make_row("d", 4)), deleted=("d", "c"))
    assert read_uses(place) == {}
    database.close()


async def test_second_record_of_a_turn_is_ignored(place: StorePlace) -> None:
    async with place.open():
        pass
    database = place.open_database()
    write(database, ("a", make_row("a", 1)), ("a", make_row("b", 1, 2)))
    assert read_uses(place) == {bytes([1]) * 16: 1}
    database.close()


async def test_block_that_another_server_frees_meanwhile_is_written_again(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block existed when it was looked for, and does not any more when its uses are counted."""
    async with place.open():
        pass
    database, answers = place.open_database(), [{bytes([1]) * 16}]
    select_keys = RecordTables._select_keys

    def select_stale(tables: RecordTables, *values: Any) -> set[bytes]:
        return answers.pop() if answers else select_keys(tables, *values)

    monkeypatch.setattr(RecordTables, "_select_keys", select_stale)
    write(database, ("a", make_row("a", 1, 2)))
    assert read_uses(place) == {bytes([1]) * 16: 1, bytes([2]) * 16: 1}
    assert database.records.find("me", "a") == make_row("a", 1, 2)
    database.close()


@pytest.mark.parametrize("seed", range(3))
async def test_servers_that_change_the_same_blocks_never_wait_for_each_other(
    postgres_place: PostgresPlace, seed: int
) -> None:
    """Four writers insert and delete records with common blocks in any order; a deadlock would raise an error."""
    async with postgres_place.open():
        pass

    def work(writer: int) -> None:
        dice, database, kept = random.Random(f"{seed} {writer}"), postgres_place.open_database(), list[str]()
        for number in range(60):
            names = [f"{writer}-{number}-{index}" for index in range(dice.randrange(1, 4))]
            deleted = tuple(kept.pop(dice.randrange(len(kept))) for _ in range(min(len(kept), dice.randrange(4))))
            rows = [(name, make_row(name, *(dice.randrange(12) for _ in range(6)))) for name in names]
            write(database, *rows, deleted=deleted)
            kept += names
        write(database, deleted=tuple(kept) if seed else ())
        database.close()

    await asyncio.gather(*(asyncio.to_thread(work, writer) for writer in range(4)))
    assert bool(read_uses(postgres_place)) is (seed == 0)
