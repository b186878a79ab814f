"""Background responses whose server is gone: which continue at another one, which are left to others, which end as failed."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from antiphon.app.context import create_context
from antiphon.app.inspection.summaries import RESTARTED_CODE
from antiphon.app.options.settings import Settings
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.turn_types.continuation import Continuation
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turns.stored_history import StoredHistory
from tests.app.store.continued_turns import (
    BODY,
    DELAY_S,
    SCRIPT,
    TEXT,
    read_end,
    run_context,
    start_turn,
    wait_for_entries,
)
from tests.app.store.store_helpers import StorePlace
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry

pytestmark = pytest.mark.processes


def text_of(events: Sequence[dict[str, Any]]) -> str:
    response = check_stream(list(events))
    return "".join(part["text"] for item in response["output"] for part in item["content"])


@pytest.mark.parametrize(
    ("num_entries", "background"), [(2, True), (3, True), (6, True), (20, True), (3, False), (20, False)]
)
async def test_response_continues_where_another_server_has_left_it(
    place: StorePlace, num_entries: int, *, background: bool
) -> None:
    async with run_context(place) as first:
        log = await start_turn(first, background=background)
        log.was_read = True  # a client that waits for its reply learns of a shutdown
        await wait_for_entries(log, num_entries)
    before = [json.loads(entry.data) for entry in log.entries]
    assert before[-1]["type"] != "response.completed" and log.ended
    async with run_context(place) as second:
        events = await read_end(second, log.id)
    assert events[: len(before)] == before, "what was stored stays"
    assert (events[-1]["type"], text_of(events)) == ("response.completed", TEXT)
    assert events[-1]["response"]["usage"]["output_tokens"] == len(TEXT) + 1
    assert place.read_rows("SELECT count(*) FROM continuations") == [(0,)]


async def test_log_probabilities_continue(place: StorePlace) -> None:
    async with run_context(place) as first:
        log = await start_turn(first, include=["message.output_text.logprobs"], top_logprobs=2)
        await wait_for_entries(log, 8)
    before = [json.loads(entry.data) for entry in log.entries]
    async with run_context(place) as second:
        events = await read_end(second, log.id)
    assert events[: len(before)] == before and text_of(events) == TEXT
    [part] = events[-1]["response"]["output"][0]["content"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert part["logprobs"] == [entry for event in deltas for entry in event["logprobs"]]
    assert [(entry["token"], len(entry["top_logprobs"])) for entry in part["logprobs"]] == [(char, 2) for char in TEXT]


async def test_summary_of_a_continued_response_has_what_it_continues(place: StorePlace) -> None:
    async with run_context(place, inspect="store") as first:
        earlier = await start_turn(first, background=False)
        await earlier.wait_finished()
        history = StoredHistory(first.store, "", first.turn_manager.sealer)
        parsed = read_responses_request(BODY | {"previous_response_id": earlier.id}, first.models, history)
        log = await first.turn_manager.start_turn(parsed.model, parsed.spec)
        await wait_for_entries(log, 6)
    async with run_context(place, inspect="store") as second:
        await read_end(second, log.id)
    assert place.read_rows(f"SELECT previous FROM turn_summaries WHERE id = '{log.id}'") == [(earlier.id,)]


async def test_responses_that_wait_for_the_engine_run_in_their_order(place: StorePlace) -> None:
    registry = scripted_registry([{"name": "stall", "output": [{"stall": True}]}], max_num_seqs=1)
    async with run_context(place, registry=registry) as first:
        logs = [await start_turn(first, metadata={"number": str(number)}) for number in range(4)]
        await wait_for_entries(logs[0], 3)
    assert [len(log.entries) for log in logs[1:]] == [2, 2, 2], "the others are queued"
    started: list[str] = []
    registry = scripted_registry(SCRIPT, delay=0.0, max_num_seqs=1)
    registry.served[0].engine.on_reply = lambda job, _: started.append(job.id)  # type: ignore[attr-defined]
    async with run_context(place, registry=registry) as second:
        for log in logs:
            assert text_of(await read_end(second, log.id)) == TEXT
    assert started == [log.id for log in logs]


async def test_cancelled_response_does_not_continue(place: StorePlace) -> None:
    async with run_context(place) as first:
        log = await start_turn(first)
        await wait_for_entries(log, 8)
    async with run_context(place, delay=60.0) as second:
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while not second.turn_manager.num_running:
                await asyncio.sleep(0.005)
        second.turn_manager.cancel_turn(log.id)
        events = await read_end(second, log.id)
    assert events[-1]["response"]["status"] == "cancelled" and TEXT.startswith(text_of(events))


async def test_response_cancelled_before_its_rest_begins_ends(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_context(place) as first:
        log = await start_turn(first)
        await wait_for_entries(log, 8)
    async with place.open() as store:
        context = create_context(Settings(), scripted_registry(SCRIPT, delay=60.0), store=store)
        adopt_log = store.adopt_log

        def cancel_adopted(adopted: EventLog) -> None:
            adopt_log(adopted)  # the task of the turn is created next, so that this runs before the task does
            asyncio.get_running_loop().call_soon(context.turn_manager.cancel_turn, adopted.id)

        monkeypatch.setattr(store, "adopt_log", cancel_adopted)
        context.turn_manager.continuer.start(context.models.served, 60.0)
        events = await read_end(context, log.id)
        await context.turn_manager.drain(0)
    assert events[-1]["response"]["status"] == "cancelled"


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"background": False, "stream": True}, {"show_uncommitted": True}),
        ({}, {"continue_within": 0.0}),
    ],
    ids=["shown early", "switched off"],
)
async def test_other_responses_end_as_failed(
    place: StorePlace, fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    async with run_context(place, delay=60.0, **settings) as first:
        log = await start_turn(first, **fields)
        assert place.read_rows("SELECT count(*) FROM continuations") == [(0,)]
    async with run_context(place) as second:
        events = await read_end(second, log.id)
    assert events[-1]["response"]["status"] == "failed"


async def test_response_of_another_model_is_left_to_others_for_a_time(place: StorePlace) -> None:
    async with run_context(place) as first:
        log = await start_turn(first)
        await wait_for_entries(log, 8)
    other = scripted_registry(SCRIPT, names=("another",))
    async with run_context(place, registry=other, continue_within=0.5) as second:
        read = await second.store.read_log("", log.id)
        await asyncio.sleep(0.2)
        assert read is not None and not read.ended, "another server may have the model"
        events = await read_end(second, log.id)
    assert events[-1]["response"]["error"]["code"] == RESTARTED_CODE


async def test_response_that_ends_its_servers_is_given_up(place: StorePlace) -> None:
    async with run_context(place, delay=60.0) as context:
        log = await start_turn(context)
        await wait_for_entries(log, 3)
    for _ in range(3):
        async with run_context(place, delay=60.0) as context:
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while not context.turn_manager.num_running:
                    await asyncio.sleep(0.005)
    async with run_context(place) as last:
        events = await read_end(last, log.id)
    assert events[-1]["response"]["error"]["code"] == RESTARTED_CODE


async def test_response_with_more_output_after_each_death_goes_on(place: StorePlace) -> None:
    async with run_context(place, delay=0.03) as context:
        log = await start_turn(context)
        await wait_for_entries(log, 6)
    for _ in range(5):
        async with run_context(place, delay=0.03) as context:
            read = await context.store.read_log("", log.id)
            assert read is not None
            await wait_for_entries(read, len(read.entries) + 2)
    async with run_context(place) as last:
        events = await read_end(last, log.id)
    assert text_of(events) == TEXT


async def test_damaged_event_ends_the_response_as_failed(place: StorePlace, capfd: pytest.CaptureFixture[str]) -> None:
    async with run_context(place) as first:
        log = await start_turn(first)
        await wait_for_entries(log, 12)
    row = place.read_rows(f"SELECT data FROM events WHERE response = '{log.id}' AND number = 7")[0][0]
    changed = bytes(row).decode().replace('"delta":"', '"delta":"x').replace("'", "''")
    place.read_rows(f"UPDATE events SET data = {place.quote_bytes(changed)} WHERE response = '{log.id}' AND number = 7")
    async with run_context(place) as second:
        events = await read_end(second, log.id)
    assert (events[-1]["response"]["status"], events[-1]["response"]["error"]["code"]) == ("failed", RESTARTED_CODE)


async def test_two_servers_never_continue_with_one_response(place: StorePlace) -> None:
    async with run_context(place) as first:
        logs = [await start_turn(first) for _ in range(6)]
        await asyncio.gather(*(wait_for_entries(log, 6) for log in logs))
    jobs: list[str] = []
    registries = [scripted_registry(SCRIPT, delay=DELAY_S) for _ in range(2)]
    for registry in registries:
        registry.served[0].engine.on_reply = lambda job, _: jobs.append(job.id)  # type: ignore[attr-defined]
    async with run_context(place, registry=registries[0]) as one, run_context(place, registry=registries[1]) as two:
        for log in logs:
            assert text_of(await read_end(one, log.id)) == text_of(await read_end(two, log.id)) == TEXT
    assert sorted(jobs) == sorted(log.id for log in logs)


async def test_server_that_dies_between_its_claim_and_its_first_step_leaves_the_response(place: StorePlace) -> None:
    """While it lives, no other server touches the response; after its death, the next one continues."""
    async with run_context(place) as first:
        log = await start_turn(first)
        await wait_for_entries(log, 8)
    before = [entry.data for entry in log.entries]
    claimed = asyncio.Event()

    async def hang(*_: object) -> None:
        claimed.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as others:
        async with run_context(place) as second:
            second.turn_manager.continuer._resume = hang
            async with asyncio.timeout(HANG_TIMEOUT_S):
                await claimed.wait()
            third = await others.enter_async_context(run_context(place))
            await asyncio.sleep(0.3)
            assert (
                place.read_rows("SELECT count(*) FROM events") == [(len(before),)]
                and not third.turn_manager.num_running
            )
        events = await read_end(third, log.id)
    assert (events[-1]["type"], text_of(events)) == ("response.completed", TEXT)


async def test_bug_in_the_rest_of_a_response_ends_it_as_failed(place: StorePlace) -> None:
    async with run_context(place) as first:
        log = await start_turn(first)
        await wait_for_entries(log, 8)

    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async with place.open() as store:
        models = scripted_registry(SCRIPT)
        second = create_context(Settings(), models, store=store)
        second.turn_manager.continuer._resume = fail
        second.turn_manager.continuer.start(models.served, 60.0)
        events = await read_end(second, log.id)
        await second.turn_manager.drain(0)
    assert events[-1]["response"]["error"]["code"] == RESTARTED_CODE


async def test_server_that_ends_continues_with_no_response(place: StorePlace) -> None:
    async with run_context(place) as first:
        log = await start_turn(first)
        await wait_for_entries(log, 8)
    async with run_context(place, registry=scripted_registry(SCRIPT, names=("another",))) as second:
        await second.turn_manager.drain(0)
        read = await second.store.read_log("", log.id)
        assert read is not None
        read.continuation = Continuation(model="another", digest="", data=b"")
        second.turn_manager.continuer._on_claimed(read)  # by the thread of the store, which ends later
        assert not second.turn_manager.continuer._tasks
