"""Clients that leave, and many at once, with the openai SDK."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.sdk_helpers import (
    CASES,
    all_cases,
    async_sdk,
    chat_body,
    events,
    for_sdk,
    plain,
    responses_body,
    sdk,
    within,
)
from tests.clients.test_chat_stream import as_whole
from tests.invariants import check
from tests.serving import RunningServer, scripted_registry, serve

STALL = [{"name": "stall", "output": ["Hello ", {"stall": True}]}]


@pytest.fixture(scope="module")
def stalling() -> Iterator[RunningServer]:
    with serve(scripted_registry(STALL, max_num_seqs=4)) as served:
        yield served


def idle(served: RunningServer) -> bool:
    stats = served.engine.stats()
    return (stats.running, stats.waiting, stats.running_cache_tokens) == (0, 0, 0)


def test_leaving_the_middle_of_a_stream_frees_the_slot_within_a_second(stalling: RunningServer) -> None:
    with sdk(stalling) as (client, _):
        with client.responses.stream(model="scripted", input="hi") as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    break
            assert stalling.engine.stats().running == 1
        assert within(1, lambda: idle(stalling))


def test_leaving_the_middle_of_a_chat_stream_frees_the_slot_within_a_second(stalling: RunningServer) -> None:
    with sdk(stalling) as (client, _):
        with client.chat.completions.stream(model="scripted", messages=[{"role": "user", "content": "hi"}]) as stream:
            for event in stream:
                if event.type == "content.delta" and event.delta:
                    break
            assert stalling.engine.stats().running == 1
        assert within(1, lambda: idle(stalling))


@pytest.mark.parametrize("face", ["responses", "chat"])
async def test_leaving_a_request_that_is_not_streamed_frees_the_slot_within_a_second(
    stalling: RunningServer, face: str
) -> None:
    async with async_sdk(stalling) as (client, _):
        asked: Any = (
            client.responses.create(model="scripted", input="hi")
            if face == "responses"
            else client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
        )
        task = asyncio.ensure_future(asked)
        assert await asyncio.to_thread(within, 5, lambda: stalling.engine.stats().running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await asyncio.to_thread(within, 1, lambda: idle(stalling))


def test_a_client_that_loses_patience_frees_the_slot(stalling: RunningServer) -> None:
    with sdk(stalling) as (client, _), pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).responses.create(model="scripted", input="hi")
    assert within(1, lambda: idle(stalling))


def test_a_left_response_is_kept_as_cancelled_and_its_stream_is_legal(stalling: RunningServer) -> None:
    with sdk(stalling) as (client, tape):
        with client.responses.stream(model="scripted", input="hi") as stream:
            made = next(iter(stream)).response.id
        assert within(1, lambda: client.responses.retrieve(made).status == "cancelled")
        list(client.responses.retrieve(made, stream=True))
        assert check(events(tape.answer()))["status"] == "cancelled"


def test_a_turn_goes_on_while_anybody_reads_it(stalling: RunningServer) -> None:
    """Only when the last reader of a foreground turn has left is there nobody to speak to."""
    with sdk(stalling) as (client, _):
        with client.responses.stream(model="scripted", input="hi") as first:
            made = next(iter(first)).response.id
            second = client.responses.retrieve(made, stream=True)
            assert next(iter(second)).type == "response.created"
        still_running = not within(0.5, lambda: idle(stalling))
        second.close()
        assert within(1, lambda: idle(stalling))
    assert still_running


async def test_thirty_two_streams_at_once_do_not_mix() -> None:
    cases = [case for case in CASES if not (case.refused or case.cancel or "fault" in str(case.speak))]
    cases = [case for case in cases if case.finish == "stop" and case.name != "end_of_turn_inside_arguments"]
    chosen = (cases * 3)[:32]
    with serve(all_cases(step=1, delay=0.001)) as served:
        async with async_sdk(served) as (client, _):

            async def one(number: int) -> tuple[Any, Any]:
                case = chosen[number]
                if number % 2:
                    async with client.chat.completions.stream(**for_sdk(chat_body(case))) as stream:
                        async for _ in stream:
                            pass
                        summed = plain(stream.current_completion_snapshot)
                    whole = plain(await client.chat.completions.create(**for_sdk(chat_body(case))))
                    return as_whole(summed | {"usage": 0}), as_whole(whole | {"usage": 0})
                async with client.responses.stream(**for_sdk(responses_body(case))) as stream:
                    final = await stream.get_final_response()
                return plain(final), plain(await client.responses.retrieve(final.id))

            pairs = await asyncio.gather(*(one(number) for number in range(32)))
        models = served.context.models.served
        assert all(model.engine.stats().running == 0 for model in models)
    for streamed, whole in pairs:
        assert streamed == whole
