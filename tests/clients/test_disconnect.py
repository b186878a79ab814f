"""Clients of the openai SDK that disconnect during a turn, and many concurrent streams."""

import asyncio
import threading
from functools import partial
from typing import Any

import openai
import pytest

from tests.clients.sdk_helpers import (
    CASES,
    chat_body,
    dump_sdk_object,
    make_case_registry,
    normalize_completion,
    open_async_sdk,
    open_sdk,
    parse_events,
    responses_body,
    sdk_arguments,
    wait_until,
)
from tests.invariants import check_stream
from tests.serving import RunningServer, scripted_registry, serve

STALLING_SCRIPT = [{"name": "stall", "output": ["Hello ", {"stall": True}]}]


SERVER = partial(serve, partial(scripted_registry, STALLING_SCRIPT, max_num_seqs=4))


def is_idle(server: RunningServer) -> bool:
    stats = server.engine.stats()
    return (stats.running, stats.waiting, stats.running_cache_tokens) == (0, 0, 0)


def test_response_stream_disconnect_frees_the_slot(server: RunningServer) -> None:
    with open_sdk(server) as (client, _):
        with client.responses.stream(model="scripted", input="hi") as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    break
            assert server.engine.stats().running == 1
        assert wait_until(30, lambda: is_idle(server))


def test_chat_stream_disconnect_frees_the_slot(server: RunningServer) -> None:
    with open_sdk(server) as (client, _):
        with client.chat.completions.stream(model="scripted", messages=[{"role": "user", "content": "hi"}]) as stream:
            for event in stream:
                if event.type == "content.delta" and event.delta:
                    break
            assert server.engine.stats().running == 1
        assert wait_until(30, lambda: is_idle(server))


def test_request_cancelled_in_the_moment_in_which_its_turn_starts_frees_the_slot(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_prompts = server.context.turn_manager.start_prompts
    was_started = threading.Event()

    async def start_and_cancel(*args: Any, **options: Any) -> Any:
        logs = await start_prompts(*args, **options)
        (handler,) = (task for task in asyncio.all_tasks() if "run_asgi" in repr(task.get_coro()))
        asyncio.get_running_loop().call_soon(handler.cancel)
        was_started.set()
        return logs

    monkeypatch.setattr(server.context.turn_manager, "start_prompts", start_and_cancel)
    with open_sdk(server) as (client, _), pytest.raises(openai.InternalServerError):
        client.with_options(max_retries=0).responses.create(model="scripted", input="hi")
    assert was_started.is_set()
    assert wait_until(30, lambda: is_idle(server))


@pytest.mark.parametrize("endpoint", ["responses", "chat"])
async def test_unstreamed_request_disconnect_frees_the_slot(server: RunningServer, endpoint: str) -> None:
    async with open_async_sdk(server) as (client, _):
        request: Any = (
            client.responses.create(model="scripted", input="hi")
            if endpoint == "responses"
            else client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
        )
        task = asyncio.ensure_future(request)
        assert await asyncio.to_thread(wait_until, 5, lambda: server.engine.stats().running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await asyncio.to_thread(wait_until, 1, lambda: is_idle(server))


def test_client_timeout_frees_the_slot(server: RunningServer) -> None:
    with open_sdk(server) as (client, _), pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).responses.create(model="scripted", input="hi")
    assert wait_until(30, lambda: is_idle(server))


def test_disconnected_response_is_stored_as_cancelled_with_a_legal_stream(server: RunningServer) -> None:
    with open_sdk(server) as (client, replies):
        with client.responses.stream(model="scripted", input="hi") as stream:
            response_id = next(iter(stream)).response.id
        assert wait_until(30, lambda: client.responses.retrieve(response_id).status == "cancelled")
        list(client.responses.retrieve(response_id, stream=True))
        assert check_stream(parse_events(replies.last()))["status"] == "cancelled"


def test_turn_runs_until_its_last_reader_leaves(server: RunningServer) -> None:
    """A foreground turn is cancelled only when its last reader has left."""
    with open_sdk(server) as (client, _):
        with client.responses.stream(model="scripted", input="hi") as first:
            response_id = next(iter(first)).response.id
            second = client.responses.retrieve(response_id, stream=True)
            assert next(iter(second)).type == "response.created"
        still_running = not wait_until(0.5, lambda: is_idle(server))
        second.close()
        assert wait_until(30, lambda: is_idle(server))
    assert still_running


async def test_thirty_two_concurrent_streams_do_not_mix() -> None:
    cases = [case for case in CASES if not (case.refused or case.cancel or "fault" in str(case.output))]
    cases = [case for case in cases if case.finish == "stop" and case.name != "end_of_turn_inside_arguments"]
    chosen = (cases * 3)[:32]
    with serve(make_case_registry(step=1, delay=0.001)) as server:
        async with open_async_sdk(server) as (client, _):

            async def read_both_ways(number: int) -> tuple[Any, Any]:
                case = chosen[number]
                if number % 2:
                    async with client.chat.completions.stream(**sdk_arguments(chat_body(case))) as stream:
                        async for _ in stream:
                            pass
                        snapshot = dump_sdk_object(stream.current_completion_snapshot)
                    unstreamed = dump_sdk_object(await client.chat.completions.create(**sdk_arguments(chat_body(case))))
                    return normalize_completion(snapshot | {"usage": 0}), normalize_completion(
                        unstreamed | {"usage": 0}
                    )
                async with client.responses.stream(**sdk_arguments(responses_body(case))) as stream:
                    final = await stream.get_final_response()
                return dump_sdk_object(final), dump_sdk_object(await client.responses.retrieve(final.id))

            pairs = await asyncio.gather(*(read_both_ways(number) for number in range(32)))
        models = server.context.models.served
        assert all(model.engine.stats().running == 0 for model in models)
    for streamed, unstreamed in pairs:
        assert streamed == unstreamed
