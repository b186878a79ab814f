"""A turn from the engine's first chunk to the log's last event: queueing, rejection, cancellation, internal errors."""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.responses import request as responses
from antiphon.app.turns.jobs import build_job
from antiphon.app.turns.manager import TurnManager
from antiphon.app.turns.prompts.prompt_token_cache import PromptTokenCache
from antiphon.app.turns.step_writer import SHUTTING_DOWN_MESSAGE
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.app.turns.turn import BROKEN_MESSAGE
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine
from antiphon.state.machine import Machine
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry
from tests.snapshots.run_case import make_turn_manager


class ScriptedTurns:
    """A turn manager with one scripted model."""

    def __init__(self, output: list[Any], timeouts: TurnTimeouts | None = None, **options: Any) -> None:
        self.registry = scripted_registry([{"name": "only", "output": output, "tokens_per_chunk": 0}], **options)
        self.manager: TurnManager = make_turn_manager(timeouts=timeouts or TurnTimeouts())
        (self.model,) = self.registry.served

    async def start_turn(self, owner: str = "", **body: Any):
        request = responses.read_responses_request(
            {"model": "scripted", "input": "Hi", "stream": True} | body, self.registry
        )
        return await self.manager.start_turn(request.model, request.spec, owner)

    @property
    def idle(self) -> bool:
        stats = self.model.engine.stats()
        return stats.running == stats.waiting == 0 and self.manager.num_running == 0


def read_events(log) -> list[dict[str, Any]]:
    return [json.loads(entry.data) for entry in log.entries]


def list_event_types(log) -> list[str]:
    return [event["type"].removeprefix("response.") for event in read_events(log)]


async def wait_until_idle(scripted: ScriptedTurns) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not scripted.idle:
            await asyncio.sleep(0)


async def test_admitted_turn_opens_in_progress() -> None:
    scripted = ScriptedTurns([{"stall": True}])
    log = await scripted.start_turn()
    assert list_event_types(log) == ["created", "in_progress"]
    scripted.manager.cancel_turn(log.id)
    await wait_until_idle(scripted)
    check_stream(read_events(log))


async def test_waiting_turn_opens_queued() -> None:
    scripted = ScriptedTurns([{"stall": True}], TurnTimeouts(queue_after_s=0.02), max_num_seqs=1)
    first, second = await scripted.start_turn(), await scripted.start_turn()
    assert list_event_types(second) == ["created", "queued"]
    scripted.manager.cancel_turn(first.id)
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while "in_progress" not in list_event_types(second):
            await asyncio.sleep(0.01)
    scripted.manager.cancel_turn(second.id)
    await wait_until_idle(scripted)
    check_stream(read_events(second))


async def test_waiting_turn_can_be_cancelled() -> None:
    scripted = ScriptedTurns([{"stall": True}], TurnTimeouts(queue_after_s=0.02), max_num_seqs=1)
    first, second = await scripted.start_turn(), await scripted.start_turn()
    scripted.manager.cancel_turn(second.id)
    assert (await second.wait_finished()).status == "cancelled"
    check_stream(read_events(second))
    scripted.manager.cancel_turn(first.id)
    await wait_until_idle(scripted)


async def test_keepalives_are_sent_before_the_first_item_only() -> None:
    scripted = ScriptedTurns([{"pause": 0.2}, "Hi", {"pause": 0.2}, "!"], TurnTimeouts(keepalive_after_s=0.05))
    log = await scripted.start_turn()
    await log.wait_finished()
    repeated = list_event_types(log).count("in_progress") - 1
    assert repeated >= 2, "keepalives while no item is open"
    assert list_event_types(log)[repeated + 2] == "output_item.added", "and none after it"
    check_stream(read_events(log))


async def test_rejected_job_is_an_error_before_any_event() -> None:
    scripted = ScriptedTurns([{"refuse": "full", "code": "server_is_overloaded", "retryable": True}])
    with pytest.raises(ApiError) as caught:
        await scripted.start_turn()
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert dict(caught.value.headers)["retry-after"] == "1"
    await wait_until_idle(scripted)


@pytest.mark.parametrize(("is_key_revoked", "error"), [(True, (401, "invalid_api_key")), (False, (503, "cancelled"))])
async def test_turn_that_is_cancelled_before_its_first_event_tells_whether_to_try_again(
    is_key_revoked: bool, error: tuple[int, str]
) -> None:
    scripted = ScriptedTurns([{"stall": True}], TurnTimeouts(queue_after_s=HANG_TIMEOUT_S), max_num_seqs=1)
    first, waiting = await scripted.start_turn(), asyncio.create_task(scripted.start_turn())
    while scripted.manager.num_running < 2:
        await asyncio.sleep(0.01)
    if is_key_revoked:
        assert first.stats is not None
        assert scripted.manager.cancel_turns_of_keys(frozenset((first.stats.key.digest,))) == 2
    else:
        await scripted.manager.drain(0)
    with pytest.raises(ApiError) as caught:
        await waiting
    assert (caught.value.status, caught.value.code) == error
    assert ("retry-after", "1") in caught.value.headers or is_key_revoked
    await wait_until_idle(scripted)


async def test_prompt_longer_than_the_context_is_rejected() -> None:
    scripted = ScriptedTurns(["Hi"], info=EngineInfo(max_model_len=8, vocab_size=1000, eos_ids=()))
    with pytest.raises(ApiError) as caught:
        await scripted.start_turn(input="word " * 50)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "context_length_exceeded", "input")


async def test_rejected_choice_cancels_the_others() -> None:
    scripted = ScriptedTurns([{"stall": True}], max_num_seqs=1, max_waiting=1)
    request = responses.read_responses_request({"model": "scripted", "input": "Hi"}, scripted.registry)

    with pytest.raises(ApiError) as caught:
        await scripted.manager.start_prompts(request.model, (msgspec.structs.replace(request.spec, n=4),))
    assert caught.value.status == 429
    await wait_until_idle(scripted)


async def test_excess_turns_are_rejected_before_their_prompts_are_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted, render, calls = (
        ScriptedTurns([{"stall": True}], max_num_seqs=2, max_waiting=3),
        PromptTokenCache.render,
        [],
    )

    def render_slowly(*args: Any) -> Any:
        calls.append(args)
        time.sleep(0.05)
        return render(*args)

    monkeypatch.setattr(PromptTokenCache, "render", render_slowly)
    starting = [asyncio.create_task(scripted.start_turn()) for _ in range(40)]
    rejected, _ = await asyncio.wait(starting, timeout=0.02)
    assert len(rejected) == 35 and all(isinstance(task.exception(), ApiError) for task in rejected)
    for task in starting:
        if task not in rejected:
            task.cancel()
    await asyncio.gather(*starting, return_exceptions=True)
    await wait_until_idle(scripted)
    assert len(calls) <= 5
    assert (await scripted.start_turn()).entries, "cancelled requests release their slots, too"


async def test_cancelled_waiting_request_frees_its_slot() -> None:
    scripted = ScriptedTurns([{"stall": True}], TurnTimeouts(queue_after_s=30), max_num_seqs=1)
    first = await scripted.start_turn()
    waiting = asyncio.create_task(scripted.start_turn())
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while scripted.model.engine.stats().waiting != 1:
            await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    scripted.manager.cancel_turn(first.id)
    await wait_until_idle(scripted)


async def test_slot_is_free_before_the_last_event_is_published() -> None:
    scripted = ScriptedTurns(["Hi"])
    log = await scripted.start_turn()
    async for entries in log.follow_entries():
        if any(entry.event.__class__.__name__ == "Completed" for entry in entries):
            assert scripted.model.engine.stats().running == 0


async def test_internal_error_is_a_failed_response(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedTurns(["Hi", " there"])
    feed, segments = Machine.feed, []

    def feed_once(self: Machine, segment: object):
        segments.append(segment)
        if len(segments) == 2:
            raise ZeroDivisionError
        return feed(self, segment)  # type: ignore[arg-type]

    monkeypatch.setattr(Machine, "feed", feed_once)
    log = await scripted.start_turn()
    response = await log.wait_finished()
    assert response.status == "failed" and response.error and response.error.message == BROKEN_MESSAGE
    check_stream(read_events(log))
    assert response.output[0].content[0].text == "Hi", "earlier output is kept"  # type: ignore[union-attr, index]
    await wait_until_idle(scripted)


async def test_drain_finishes_short_turns_and_fails_the_others() -> None:
    short, endless = ScriptedTurns(["Hi", {"pause": 0.05}, "!"]), ScriptedTurns(["Hi", {"stall": True}])
    finished, failed = await short.start_turn(), await endless.start_turn()
    await asyncio.gather(short.manager.drain(1.0), endless.manager.drain(0.05))
    assert finished.response.status == "completed"
    assert (
        failed.response.status == "failed"
        and failed.response.error
        and failed.response.error.message == SHUTTING_DOWN_MESSAGE
    )
    for log in (finished, failed):
        check_stream(read_events(log))
    with pytest.raises(ApiError) as caught:
        await short.start_turn()
    assert caught.value.status == 503
    await wait_until_idle(short)
    await wait_until_idle(endless)


@pytest.mark.parametrize("store", [True, False])
async def test_response_is_stored_unless_store_is_false(store: bool) -> None:
    scripted = ScriptedTurns(["Hi"])
    log = await scripted.start_turn("me", store=store)
    await log.wait_finished()
    assert (await scripted.manager.store.read_log("me", log.id) is log) == store
    assert await scripted.manager.store.read_log("you", log.id) is None


async def test_concurrent_turns_do_not_mix() -> None:
    scripted = ScriptedTurns(["<think>\nHm.\n</think>\n\n", "Hi", {"pause": 0.01}, "!"], max_num_seqs=8)
    logs = await asyncio.gather(*(scripted.start_turn() for _ in range(40)))
    for log in logs:
        await log.wait_finished()
        check_stream(read_events(log))
    ids = [item.id for log in logs for item in log.response.output]
    assert len(ids) == len(set(ids)) == 80
    await wait_until_idle(scripted)


async def test_each_choice_has_its_own_seed() -> None:
    scripted = ScriptedTurns(["Hi"])
    request = responses.read_responses_request({"model": "scripted", "input": "Hi", "seed": 5}, scripted.registry)
    turn_prompt = PromptTokenCache().render(
        scripted.model.format, "", request.spec.prompt_input, datetime(2026, 1, 1, tzinfo=UTC)
    )
    jobs = [build_job(scripted.model, request.spec, turn_prompt, number, ()) for number in range(3)]
    assert [job.sampling.seed for job in jobs] == [5, 6, 7]


async def test_server_bug_before_any_event_is_an_error_500(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedTurns(["Hi"])

    async def fail(*_: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(ScriptedEngine, "generate", fail)
    with pytest.raises(ApiError) as caught:
        await scripted.start_turn()
    assert (caught.value.status, caught.value.code) == (500, "server_error")
    await wait_until_idle(scripted)
