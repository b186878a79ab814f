"""When models are loaded and unloaded: at their first use, after idle time, and to make room for others."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.app.models.memory_pool import ModelMemory, ModelMemoryPool, PoolTimeouts
from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, Job
from tests.app.models.fake_engines import GatedEngine
from tests.progress import HANG_TIMEOUT_S

SOON = PoolTimeouts(min_stay_s=0.0, room_timeout_s=30.0, load_timeout_s=30.0)
IDLE_S = 0.02
MEMORY_DEFAULTS: dict[str, Any] = {"needed": 0, "growth": 0, "measure": lambda: None}


def hosted(host: ModelMemoryPool | None = None, name: str = "a", **options: Any) -> OnDemandEngine:
    memory = ModelMemory(*(options.pop(key, default) for key, default in MEMORY_DEFAULTS.items()))
    options = {"on_demand": True, "memory": memory, **options}
    return OnDemandEngine(GatedEngine(), host or ModelMemoryPool(timeouts=SOON), name, **options)


def inner(engine: OnDemandEngine) -> GatedEngine:
    assert isinstance(engine.inner, GatedEngine)
    return engine.inner


async def run_job(engine: OnDemandEngine, number: int = 0, deadline: float | None = None) -> list[Chunk]:
    chunks: list[Chunk] = []
    await engine.generate(Job(id=f"job-{number}", tokens=(1,), deadline=deadline), chunks.append)
    return chunks


async def wait_for(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.001)


# At the start, and at the first use


async def test_model_is_loaded_at_the_start() -> None:
    engine = hosted(on_demand=False)
    inner(engine).may_start.clear()
    starting = asyncio.create_task(engine.start())
    await wait_for(lambda: inner(engine).num_starts)
    assert engine.blocked_reason() == engine.unready_reason() == "loading"
    inner(engine).may_start.set()
    await starting
    assert (engine.load_state, engine.unready_reason(), engine.blocked_reason()) == ("loaded", None, None)
    assert engine.info.max_model_len == 1000


async def test_limit_of_the_engine_itself_holds_during_the_start() -> None:
    engine = hosted(on_demand=False)
    inner(engine).may_start.clear()
    starting = asyncio.create_task(engine.start())
    await wait_for(lambda: inner(engine).num_starts)
    with pytest.raises(EngineError, match="the limit of the engine itself is over"):
        await engine.wait_ready()
    inner(engine).may_start.set()
    await starting
    await engine.wait_ready()


async def test_model_that_cannot_be_loaded_ends_the_start_with_its_reason() -> None:
    engine = hosted(on_demand=False)
    inner(engine).failure = LoadError("/secret/path is broken")
    with pytest.raises(LoadError, match="/secret/path is broken"):
        await engine.start()
    assert engine.load_state == "unloaded" and engine.reserved_bytes == 0


async def test_first_use_loads_a_model_once_for_all_that_wait() -> None:
    engine = hosted()
    await engine.start()
    assert (engine.load_state, inner(engine).num_starts) == ("unloaded", 0)
    assert (engine.unready_reason(), engine.blocked_reason()) == ("not loaded", None)
    with pytest.raises(EngineError, match="the model a is not loaded yet"):
        _ = engine.info
    results = await asyncio.gather(engine.wait_ready(), *(run_job(engine, number) for number in range(3)))
    assert [chunks[-1].finish for chunks in results[1:]] == ["length"] * 3
    assert inner(engine).num_starts == engine.num_loads == 1


async def test_client_that_leaves_does_not_stop_the_load_of_others() -> None:
    engine = hosted()
    inner(engine).may_start.clear()
    first, second = (asyncio.create_task(run_job(engine, number)) for number in range(2))
    await wait_for(lambda: inner(engine).num_starts)
    first.cancel()
    inner(engine).may_start.set()
    assert (await second)[-1].finish == "length"
    assert first.cancelled() and len(inner(engine).jobs) == inner(engine).num_starts == 1


async def test_failed_load_is_told_without_its_reason_and_tried_again_later() -> None:
    host = ModelMemoryPool(timeouts=PoolTimeouts(retry_delay_s=0.05))
    engine = hosted(host)
    inner(engine).failure = LoadError("/secret/path is broken")
    for _ in range(2):
        with pytest.raises(EngineError, match=r"^the model a could not be loaded; see the server's log$") as caught:
            await engine.wait_ready()
        assert (caught.value.code, caught.value.retryable) == ("engine_unavailable", True)
    assert inner(engine).num_starts == 1
    inner(engine).failure = None

    async def is_served() -> bool:
        try:
            await run_job(engine)
        except EngineError:
            return False
        return True

    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not await is_served():
            await asyncio.sleep(0.01)
    assert inner(engine).num_starts == 2


async def test_wait_for_a_load_is_bounded_by_the_limit_and_by_the_job() -> None:
    engine = hosted(ModelMemoryPool(timeouts=PoolTimeouts(load_timeout_s=0.01)))
    inner(engine).may_start.clear()
    with pytest.raises(EngineError, match=r"the model a is still being loaded \(loading\)") as caught:
        await run_job(engine)
    assert caught.value.code == "engine_unavailable"
    engine = hosted()
    inner(engine).may_start.clear()
    with pytest.raises(EngineError, match="the job did not start in time: loading") as caught:
        await run_job(engine, deadline=0.01)
    assert caught.value.code == "deadline_exceeded"
    waiting = asyncio.create_task(run_job(engine, 7))
    await wait_for(lambda: engine._waiting)
    await engine.cancel("job-7")
    with pytest.raises(EngineError) as caught:
        await waiting
    assert caught.value.code == "cancelled"


async def test_deadline_counts_the_time_of_the_load() -> None:
    engine = hosted()
    inner(engine).may_start.clear()
    running = asyncio.create_task(run_job(engine, deadline=60.0))
    await wait_for(lambda: inner(engine).num_starts)
    await asyncio.sleep(0.01)
    inner(engine).may_start.set()
    await running
    deadline = inner(engine).jobs[0].deadline
    assert deadline is not None and deadline < 60.0 - 0.005


async def test_excess_requests_are_refused_while_a_model_is_loaded() -> None:
    engine = hosted()
    inner(engine).may_start.clear()
    waiting = [asyncio.create_task(engine.wait_ready()) for _ in range(engine.capacity())]
    await wait_for(lambda: inner(engine).num_starts)
    with pytest.raises(EngineError) as caught:
        await engine.wait_ready()
    assert caught.value.code == "server_is_overloaded"
    inner(engine).may_start.set()
    await asyncio.gather(*waiting)


async def test_close_ends_everything_that_waits() -> None:
    started, asked = hosted(on_demand=False), hosted()
    tasks = [asyncio.create_task(started.start()), asyncio.create_task(run_job(asked))]
    for engine in (started, asked):
        inner(engine).may_start.clear()
    await wait_for(lambda: inner(started).num_starts and inner(asked).num_starts)
    await asyncio.gather(started.close(), asked.close())
    for task in tasks:
        with pytest.raises(EngineError, match="not running"):
            await task
    with pytest.raises(EngineError, match="not running"):
        await asked.wait_ready()


# Idle time


async def test_idle_model_is_unloaded_and_the_next_request_loads_it_again() -> None:
    engine = hosted(idle_unload_s=IDLE_S)
    await run_job(engine)
    await wait_for(lambda: engine.load_state == "unloaded")
    assert not inner(engine).is_running and engine.num_unloads == 1
    assert engine.info.max_model_len == 1000
    assert (await run_job(engine))[-1].finish == "length"
    assert (inner(engine).num_starts, engine.stats().generated_tokens) == (2, 2)


async def test_model_that_nobody_used_after_its_load_is_unloaded() -> None:
    engine = hosted(on_demand=False, idle_unload_s=IDLE_S)
    await engine.start()
    await wait_for(lambda: engine.load_state == "unloaded")


async def test_running_job_keeps_a_model_awake() -> None:
    engine = hosted(idle_unload_s=IDLE_S)
    inner(engine).may_finish.clear()
    running = asyncio.create_task(run_job(engine))
    await wait_for(lambda: inner(engine).jobs)
    await engine.wait_ready()
    await asyncio.sleep(5 * IDLE_S)
    assert engine.load_state == "loaded"
    inner(engine).may_finish.set()
    assert (await running)[-1].finish == "length"
    await wait_for(lambda: engine.load_state == "unloaded")


async def test_job_of_a_known_model_is_accepted_before_its_load_has_ended() -> None:
    engine = hosted(idle_unload_s=IDLE_S)
    await run_job(engine)
    await wait_for(lambda: engine.load_state == "unloaded")
    inner(engine).may_start.clear()
    async with asyncio.timeout(HANG_TIMEOUT_S):
        await engine.wait_ready()
    assert engine.load_state == "loading"
    running = asyncio.create_task(run_job(engine))
    await asyncio.sleep(2 * IDLE_S)
    inner(engine).may_start.set()
    assert (await running)[-1].finish == "length"


async def test_first_job_of_a_model_with_known_files_is_accepted_before_its_load() -> None:
    engine = hosted(static_info=EngineInfo(max_model_len=4000, vocab_size=256))
    inner(engine).may_start.clear()
    assert engine.info.max_model_len == 4000
    async with asyncio.timeout(HANG_TIMEOUT_S):
        await engine.wait_ready()
    assert engine.load_state == "loading"
    inner(engine).may_start.set()
    assert (await run_job(engine))[-1].finish == "length"
    assert engine.info.max_model_len == 1000


async def test_request_during_the_unloading_loads_the_model_again() -> None:
    engine = hosted()
    await run_job(engine)
    inner(engine).may_close.clear()
    unloading = asyncio.create_task(engine.unload("test"))
    await wait_for(lambda: engine.load_state == "unloading")
    running = asyncio.create_task(run_job(engine))
    await wait_for(lambda: engine._waiting)
    inner(engine).may_close.set()
    assert (await running)[-1].finish == "length"
    await unloading
    assert (engine.load_state, inner(engine).num_starts) == ("loaded", 2)


# Memory


def three(limit: int, *needs: int, timeouts: PoolTimeouts = SOON) -> list[OnDemandEngine]:
    host = ModelMemoryPool(limit, timeouts)
    return [hosted(host, name, needed=need) for name, need in zip("abc", needs, strict=False)]


async def test_least_recently_used_idle_model_makes_room() -> None:
    a, b, c = three(10, 4, 4, 4)
    await run_job(a)
    await run_job(b)
    await run_job(a)
    await run_job(c)
    assert [engine.load_state for engine in (a, b, c)] == ["loaded", "unloaded", "loaded"]
    assert sum(engine.reserved_bytes for engine in (a, b, c)) == 8


async def test_as_many_models_leave_as_are_needed() -> None:
    a, b, c = three(10, 4, 4, 9)
    for engine in (a, b, c):
        await run_job(engine)
    assert [engine.load_state for engine in (a, b, c)] == ["unloaded", "unloaded", "loaded"]


async def test_model_in_use_stays_and_the_other_waits_for_it() -> None:
    a, b, c = three(10, 8, 8, 1)
    inner(a).may_finish.clear()
    running = asyncio.create_task(run_job(a))
    await wait_for(lambda: inner(a).jobs)
    await run_job(c)
    waiting = asyncio.create_task(run_job(b))
    await asyncio.sleep(0.02)
    assert (a.load_state, b.unready_reason(), b.blocked_reason()) == ("loaded", "waiting for memory", None)
    assert c.load_state == "loaded", "unloading a model that makes too little room is of no use"
    inner(a).may_finish.set()
    assert [chunks[-1].finish for chunks in await asyncio.gather(running, waiting)] == ["length", "length"]
    assert (a.load_state, b.load_state) == ("unloaded", "loaded")


async def test_wait_for_memory_ends_with_an_error_that_can_be_retried() -> None:
    a, b = three(10, 8, 8, timeouts=PoolTimeouts(min_stay_s=0.0, room_timeout_s=0.02))
    inner(a).may_finish.clear()
    running = asyncio.create_task(run_job(a))
    await wait_for(lambda: inner(a).jobs)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"b does not fit .* beside models that are in use \(a\)") as caught:
            await b.wait_ready()
        assert (caught.value.code, caught.value.retryable) == ("engine_unavailable", True)
    inner(a).may_finish.set()
    await running
    await run_job(b)


async def test_two_models_that_displace_each_other_serve_every_request() -> None:
    a, b = three(10, 8, 8, timeouts=PoolTimeouts(min_stay_s=0.001))
    results = await asyncio.gather(*(run_job(engine, number) for number in range(3) for engine in (a, b)))
    assert [chunks[-1].finish for chunks in results] == ["length"] * 6


async def test_load_of_clients_that_have_left_takes_no_memory() -> None:
    a, b = three(10, 8, 8)
    inner(a).may_finish.clear()
    running = asyncio.create_task(run_job(a))
    await wait_for(lambda: inner(a).jobs)
    waiting = asyncio.create_task(run_job(b))
    await wait_for(lambda: b.load_state == "loading")
    waiting.cancel()
    inner(a).may_finish.set()
    await running
    await wait_for(lambda: b.load_state == "unloaded")
    assert (inner(b).num_starts, b.reserved_bytes) == (0, 0)


async def test_models_beyond_the_memory_are_not_loaded_at_the_start() -> None:
    host = ModelMemoryPool(10, SOON)
    engines = [hosted(host, name, on_demand=False, needed=4) for name in "abc"]
    await asyncio.gather(*(engine.start() for engine in engines))
    assert [engine.load_state for engine in engines] == ["loaded", "loaded", "unloaded"]
    assert [engine.blocked_reason() for engine in engines] == [None, None, None]
    await run_job(engines[2])
    assert [engine.load_state for engine in engines] == ["unloaded", "loaded", "loaded"]


async def test_measured_memory_replaces_the_estimate() -> None:
    host = ModelMemoryPool(10, SOON)
    a = hosted(host, "a", needed=20, growth=1, measure=lambda: 2)
    b = hosted(host, "b", needed=4)
    await run_job(a)
    assert (a.reserved_bytes, a.needed_bytes) == (3, 3), "an estimate above the limit must not bar a model"
    await run_job(b)
    assert (a.load_state, b.load_state, host.reserved_bytes) == ("loaded", "loaded", 7)


@pytest.mark.parametrize("min_stay_s", [0.0, 0.05])
async def test_models_leave_if_another_takes_more_than_expected(min_stay_s: float) -> None:
    host = ModelMemoryPool(10, PoolTimeouts(min_stay_s=min_stay_s))
    a, b = (hosted(host, name, needed=2) for name in "ab")
    c = hosted(host, "c", needed=2, growth=2, measure=lambda: 5)
    for engine in (a, b, c):
        await run_job(engine)
    await wait_for(lambda: a.load_state == "unloaded")
    assert (b.load_state, c.load_state, host.reserved_bytes) == ("loaded", "loaded", 9)


async def test_cache_that_may_grow_beyond_the_limit_bars_no_model() -> None:
    engine = hosted(ModelMemoryPool(10, SOON), growth=9, measure=lambda: 2, on_demand=False)
    await engine.start()
    assert (engine.load_state, engine.reserved_bytes) == ("loaded", 10)


async def test_model_that_takes_more_than_the_limit_is_not_kept() -> None:
    engine = hosted(ModelMemoryPool(10, SOON), needed=4, measure=lambda: 11, on_demand=False)
    with pytest.raises(LoadError, match="--memory-gib"):
        await engine.start()
    assert (inner(engine).is_running, engine.load_state, engine.reserved_bytes) == (False, "unloaded", 0)
