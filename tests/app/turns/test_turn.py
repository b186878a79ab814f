"""A turn from the engine's first chunk to the log's last event: patience, refusals, cancellations, faults of our own."""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests import responses as request
from antiphon.app.turns.manager import TurnManager
from antiphon.app.turns.token_history import TokenHistory
from antiphon.app.turns.turn import BROKEN_MESSAGE, SHUTTING_DOWN_MESSAGE, TurnTimeouts
from antiphon.engine.protocol import EngineInfo
from tests.invariants import check
from tests.serving import scripted_registry
from tests.snapshots.run_case import turns


class Stage:
    """One scripted model, and turns on it."""

    def __init__(self, speak: list[Any], pace: TurnTimeouts | None = None, **options: Any) -> None:
        self.catalogue = scripted_registry([{"name": "only", "output": speak, "tokens_per_chunk": 0}], **options)
        self.turns: TurnManager = turns(timeouts=pace or TurnTimeouts())
        (self.model,) = self.catalogue.served

    async def open(self, owner: str = "", **body: Any):
        asked = request.read_responses_request(
            {"model": "scripted", "input": "Hi", "stream": True} | body, self.catalogue
        )
        return await self.turns.start_turn(asked.model, asked.spec, owner)

    @property
    def idle(self) -> bool:
        stats = self.model.engine.stats()
        return stats.running == stats.waiting == 0 and self.turns.num_running == 0


def told(log) -> list[dict[str, Any]]:
    return [json.loads(frame.data) for frame in log.entries]


def kinds(log) -> list[str]:
    return [event["type"].removeprefix("response.") for event in told(log)]


async def settled(stage: Stage) -> None:
    async with asyncio.timeout(5):
        while not stage.idle:
            await asyncio.sleep(0)


async def test_an_admitted_turn_is_in_progress_when_it_opens() -> None:
    stage = Stage([{"stall": True}])
    log = await stage.open()
    assert kinds(log) == ["created", "in_progress"]
    stage.turns.cancel_turn(log)
    await settled(stage)
    check(told(log))


async def test_a_turn_that_waits_says_that_it_is_queued() -> None:
    stage = Stage([{"stall": True}], TurnTimeouts(queue_after_s=0.02), max_num_seqs=1)
    first, second = await stage.open(), await stage.open()
    assert kinds(second) == ["created", "queued"]
    stage.turns.cancel_turn(first)
    async with asyncio.timeout(5):
        while "in_progress" not in kinds(second):
            await asyncio.sleep(0.01)
    stage.turns.cancel_turn(second)
    await settled(stage)
    check(told(second))


async def test_a_waiting_turn_can_be_cancelled() -> None:
    stage = Stage([{"stall": True}], TurnTimeouts(queue_after_s=0.02), max_num_seqs=1)
    first, second = await stage.open(), await stage.open()
    stage.turns.cancel_turn(second)
    assert (await second.wait_finished()).status == "cancelled"
    check(told(second))
    stage.turns.cancel_turn(first)
    await settled(stage)


async def test_a_silent_stream_is_kept_alive_before_its_first_item() -> None:
    stage = Stage([{"pause": 0.2}, "Hi", {"pause": 0.2}, "!"], TurnTimeouts(keepalive_after_s=0.05))
    log = await stage.open()
    await log.wait_finished()
    repeated = kinds(log).count("in_progress") - 1
    assert repeated >= 2, "reminders while nothing is open"
    assert kinds(log)[repeated + 2] == "output_item.added", "and none afterwards"
    check(told(log))


async def test_a_refused_job_is_an_error_before_any_event() -> None:
    stage = Stage([{"refuse": "full", "code": "server_is_overloaded", "retryable": True}])
    with pytest.raises(ApiError) as caught:
        await stage.open()
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert dict(caught.value.headers)["retry-after"] == "1"
    await settled(stage)


async def test_a_prompt_longer_than_the_context_is_refused() -> None:
    stage = Stage(["Hi"], info=EngineInfo(max_model_len=8, vocab_size=1000, eos_ids=()))
    with pytest.raises(ApiError) as caught:
        await stage.open(input="word " * 50)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "context_length_exceeded", "input")


async def test_one_refused_choice_ends_all() -> None:
    stage = Stage([{"stall": True}], max_num_seqs=1, max_waiting=1)
    asked = request.read_responses_request({"model": "scripted", "input": "Hi"}, stage.catalogue)
    import msgspec

    with pytest.raises(ApiError) as caught:
        await stage.turns.start_choices(asked.model, msgspec.structs.replace(asked.spec, n=4))
    assert caught.value.status == 429
    await settled(stage)


async def test_in_a_flood_a_turn_too_many_is_refused_before_its_prompt_is_laid_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, read, laid_out = Stage([{"stall": True}], max_num_seqs=2, max_waiting=3), TokenHistory.render, []

    def slow(*args: Any) -> Any:
        laid_out.append(args)
        time.sleep(0.05)
        return read(*args)

    monkeypatch.setattr(TokenHistory, "render", slow)
    opened = [asyncio.create_task(stage.open()) for _ in range(40)]
    refused, _ = await asyncio.wait(opened, timeout=0.02)
    assert len(refused) == 35 and all(isinstance(task.exception(), ApiError) for task in refused)
    for task in opened:
        if task not in refused:
            task.cancel()
    await asyncio.gather(*opened, return_exceptions=True)
    await settled(stage)
    assert len(laid_out) <= 5
    assert (await stage.open()).entries, "places are given back by those that left before they began, too"


async def test_whoever_leaves_while_waiting_frees_the_slot() -> None:
    stage = Stage([{"stall": True}], TurnTimeouts(queue_after_s=30), max_num_seqs=1)
    first = await stage.open()
    waiting = asyncio.create_task(stage.open())
    async with asyncio.timeout(10):
        while stage.model.engine.stats().waiting != 1:
            await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    stage.turns.cancel_turn(first)
    await settled(stage)


async def test_the_slot_is_free_before_the_last_event_is_shown() -> None:
    stage = Stage(["Hi"])
    log = await stage.open()
    async for frames in log.follow_entries():
        if any(frame.event.__class__.__name__ == "Completed" for frame in frames):
            assert stage.model.engine.stats().running == 0


async def test_a_fault_of_our_own_is_a_failed_response(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.state.machine import Machine

    stage = Stage(["Hi", " there"])
    feed, fed = Machine.feed, []

    def breaks(self: Machine, segment: object):
        fed.append(segment)
        if len(fed) == 2:
            raise ZeroDivisionError
        return feed(self, segment)  # type: ignore[arg-type]

    monkeypatch.setattr(Machine, "feed", breaks)
    log = await stage.open()
    response = await log.wait_finished()
    assert response.status == "failed" and response.error and response.error.message == BROKEN_MESSAGE
    check(told(log))
    assert response.output[0].content[0].text == "Hi", "what was said is kept"  # type: ignore[union-attr, index]
    await settled(stage)


async def test_a_draining_server_finishes_what_it_can_and_fails_the_rest() -> None:
    quick, endless = Stage(["Hi", {"pause": 0.05}, "!"]), Stage(["Hi", {"stall": True}])
    done, cut = await quick.open(), await endless.open()
    await asyncio.gather(quick.turns.drain(1.0), endless.turns.drain(0.05))
    assert done.response.status == "completed"
    assert (
        cut.response.status == "failed" and cut.response.error and cut.response.error.message == SHUTTING_DOWN_MESSAGE
    )
    for log in (done, cut):
        check(told(log))
    with pytest.raises(ApiError) as caught:
        await quick.open()
    assert caught.value.status == 503
    await settled(quick)
    await settled(endless)


@pytest.mark.parametrize("store", [True, False])
async def test_a_response_is_stored_when_it_may_be(store: bool) -> None:
    stage = Stage(["Hi"])
    log = await stage.open("me", store=store)
    await log.wait_finished()
    assert (stage.turns.store.find_log("me", log.id) is log) == store
    assert stage.turns.store.find_log("you", log.id) is None


async def test_many_turns_at_once_keep_apart() -> None:
    stage = Stage(["<think>\nHm.\n</think>\n\n", "Hi", {"pause": 0.01}, "!"], max_num_seqs=8)
    logs = await asyncio.gather(*(stage.open() for _ in range(40)))
    for log in logs:
        await log.wait_finished()
        check(told(log))
    ids = [item.id for log in logs for item in log.response.output]
    assert len(ids) == len(set(ids)) == 80
    await settled(stage)


async def test_a_seed_is_different_for_every_choice() -> None:
    from antiphon.app.turns.manager import _build_job

    stage = Stage(["Hi"])
    asked = request.read_responses_request({"model": "scripted", "input": "Hi", "seed": 5}, stage.catalogue)
    layout = TokenHistory().render(stage.model.format, "", asked.spec.prompt_input, datetime(2026, 1, 1, tzinfo=UTC))
    jobs = [_build_job(stage.model, asked.spec, layout, number) for number in range(3)]
    assert [job.sampling.seed for job in jobs] == [5, 6, 7]
