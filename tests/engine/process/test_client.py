"""The torch engine's asyncio face: streams, cancelling, faults, starting and stopping; its far side is a thread here."""

import asyncio
import random
import threading
import time
from typing import Any

import pytest

pytest.importorskip("torch")

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.messages import Report, StepReport
from antiphon.engine.protocol import Chunk, Engine, EngineError, EngineInfo, EngineStats, Job, JobChunk
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scripted.engine import ScriptedEngine, ScriptedReply, ScriptStep
from tests.engine.chunk_stream import listen
from tests.engine.threaded_engine import threaded
from tests.engine.tiny_models import core_for, fresh, generate, job_of, prompts, tokens_of

SHORT, LONG = prompts(4, 40)


async def started(*, pace: float = 0.0, **options: Any) -> ProcessEngine:
    """``pace``: seconds that every step takes longer, so that a job which should last does."""
    core = core_for(**options)
    step = core.step

    def paced() -> list[JobChunk]:
        time.sleep(pace)
        return step()

    core.step = paced  # type: ignore[method-assign]
    engine = threaded(lambda: core, queue=options.get("max_waiting", 256))
    await engine.start()
    return engine


async def collect(engine: ProcessEngine, job: Job) -> list[Chunk]:
    return [chunk async for chunk in listen(engine, job)]


async def becomes_idle(engine: ProcessEngine) -> bool:
    for _ in range(200):
        stats = engine.stats()
        if stats.running == stats.waiting == stats.running_cache_tokens == 0:
            return True
        await asyncio.sleep(0.01)
    return False


async def code_of(engine: ProcessEngine, job: Job) -> str:
    with pytest.raises(EngineError) as caught:
        await collect(engine, job)
    return caught.value.code


async def test_many_streams_at_once_get_their_own_tokens() -> None:
    engine = await started(max_num_seqs=3, max_batched_tokens=16)
    asked = prompts(3, 30, 8, 17, 5)
    results = await asyncio.gather(
        *(collect(engine, job_of(prompt, str(n), max_tokens=12)) for n, prompt in enumerate(asked))
    )
    assert [tokens_of(chunks) for chunks in results] == [generate("llama", prompt, 12) for prompt in asked]
    assert all(chunks[0] == Chunk() for chunks in results)
    assert await becomes_idle(engine)
    await engine.close()


async def test_one_wake_up_per_step_carries_the_tokens_of_all() -> None:
    engine = await started(pace=0.005, max_num_seqs=4)
    batches: list[int] = []
    hear = engine._on_report

    def counted(report: Report) -> None:
        if isinstance(report, StepReport):
            batches.append(len(report.chunks))
        hear(report)

    assert engine._connection is not None
    engine._connection._on_report = counted
    jobs = [job_of(SHORT, str(n), max_tokens=20, ignore_eos=True) for n in range(4)]
    await asyncio.gather(*(collect(engine, job) for job in jobs))
    assert sum(batches) == 4 * 21 and max(batches) == 4 and len(batches) < 40
    await engine.close()


async def test_closing_a_stream_frees_its_slot() -> None:
    engine = await started(pace=0.01, max_num_seqs=1)
    stream = listen(engine, job_of(SHORT, "endless", ignore_eos=True))
    assert await anext(stream) == Chunk()
    await anext(stream)
    assert engine.stats().running == 1
    await stream.aclose()
    assert len(await collect(engine, job_of(SHORT, "next", max_tokens=2))) == 3
    assert await becomes_idle(engine)
    await engine.close()


async def test_cancel_ends_a_running_stream_and_refuses_a_waiting_one() -> None:
    engine = await started(pace=0.01, max_num_seqs=1)
    running = listen(engine, job_of(SHORT, "running", ignore_eos=True))
    await anext(running)
    waiting = asyncio.create_task(code_of(engine, job_of(SHORT, "waiting")))
    await asyncio.sleep(0.05)
    await engine.cancel("waiting")
    assert await waiting == "cancelled"
    await engine.cancel("running")
    await engine.cancel("unknown")
    assert [chunk async for chunk in running][-1].finish == "cancelled"
    assert await becomes_idle(engine)
    await engine.close()


async def test_a_task_that_is_cancelled_frees_its_slot() -> None:
    engine = await started(pace=0.01, max_num_seqs=1)
    task = asyncio.create_task(collect(engine, job_of(SHORT, ignore_eos=True)))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await becomes_idle(engine)
    await engine.close()


async def test_a_fault_in_the_model_fails_the_stream_and_the_next_is_served() -> None:
    model = fresh("llama")
    engine = threaded(lambda: build_core_from_model(model, options=EngineOptions(max_num_seqs=2)))
    await engine.start()
    stream = listen(engine, job_of(SHORT, "unlucky", ignore_eos=True))
    await anext(stream)
    handle = model.lm_head.register_forward_hook(lambda *_: 1 / 0)
    last = [chunk async for chunk in stream][-1]
    handle.remove()
    assert last.finish == "error" and last.fault is not None and last.fault.code == "server_error"
    assert tokens_of(await collect(engine, job_of(SHORT, max_tokens=5))) == generate("llama", SHORT, 5)
    await engine.close()


async def test_a_fault_of_the_core_itself_fails_the_streams_and_the_next_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = await started()
    with monkeypatch.context() as patched:
        patched.setattr(Core, "_run_model", lambda *_: 1 / 0)
        chunks = await collect(engine, job_of(SHORT))
    assert chunks[-1].fault is not None and "engine failed" in chunks[-1].fault.message
    assert len(await collect(engine, job_of(SHORT, max_tokens=1))) == 2
    await engine.close()


async def test_what_cannot_run_is_refused_before_the_first_chunk() -> None:
    engine = await started(pace=0.01, max_num_seqs=1, max_waiting=1)
    assert await code_of(engine, job_of([5] * 256)) == "context_length_exceeded"
    assert await code_of(engine, job_of([])) == "invalid_request"
    streams = [listen(engine, job_of(SHORT, name, ignore_eos=True)) for name in "ab"]
    await anext(streams[0])
    waiting = asyncio.create_task(anext(streams[1]))
    await asyncio.sleep(0.05)
    assert await code_of(engine, job_of(SHORT, "a")) == "invalid_request"
    assert await code_of(engine, job_of(SHORT, "c")) == "server_is_overloaded"
    await streams[0].aclose()
    assert await waiting == Chunk()
    await streams[1].aclose()
    await engine.close()


async def test_a_deadline_is_told() -> None:
    engine = await started(pace=0.01, max_num_seqs=1)
    fault = (await collect(engine, job_of(SHORT, deadline=0.1, ignore_eos=True)))[-1].fault
    assert fault is not None and fault.code == "deadline_exceeded"
    await engine.close()


async def test_closing_the_engine_ends_its_streams_and_its_thread() -> None:
    engine = await started(pace=0.01, max_num_seqs=1)
    running = listen(engine, job_of(SHORT, "a", ignore_eos=True))
    await anext(running)
    waiting = asyncio.create_task(code_of(engine, job_of(SHORT, "b")))
    await asyncio.sleep(0)
    closing = asyncio.create_task(engine.close())
    last = [chunk async for chunk in running][-1]
    assert last.finish == "error" and last.fault is not None and last.fault.code == "engine_unavailable"
    assert await waiting == "engine_unavailable"
    await closing
    await engine.close()
    assert engine.stats() == EngineStats()
    assert await code_of(engine, job_of(SHORT)) == "engine_unavailable"
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]
    await engine.start()
    assert len(await collect(engine, job_of(SHORT, max_tokens=1))) == 2
    await engine.close()


async def test_streams_that_come_and_go_leave_nothing_and_change_nobodys_tokens() -> None:
    engine, dice = await started(max_num_seqs=4, max_batched_tokens=16), random.Random(3)
    jobs = [
        job_of(prompt, str(n), temperature=n % 2, seed=n, max_tokens=dice.randrange(1, 20), ignore_eos=True)
        for n, prompt in enumerate(prompts(*(dice.randrange(1, 50) for _ in range(24))))
    ]

    async def visit(job: Job) -> list[int] | None:
        stream = listen(engine, job)
        tokens: list[int] = []
        async for chunk in stream:
            tokens += chunk.tokens
            if int(job.id) % 3 == 0 and len(tokens) > 2:
                await stream.aclose()
                return None
        return tokens

    crowded = await asyncio.gather(*(visit(job) for job in jobs))
    assert await becomes_idle(engine)
    for job, tokens in zip(jobs, crowded, strict=True):
        if tokens is not None:
            assert tokens_of(await collect(engine, job)) == tokens
    await engine.close()


async def test_a_start_that_is_given_up_leaves_no_trace() -> None:
    gate = threading.Event()

    def slow() -> Core:
        gate.wait(5)
        return core_for()

    engine = threaded(slow)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0.01)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    gate.set()
    await engine.close()
    assert engine.stats() == EngineStats()


async def test_both_engines_are_engines() -> None:
    engines: list[Engine] = [
        threaded(core_for),
        ScriptedEngine(
            [ScriptedReply(name="a", output=(ScriptStep(ids=(7, 8)),))],
            encode=lambda text: [],
            info=EngineInfo(max_model_len=99, vocab_size=96),
        ),
    ]
    for engine in engines:
        await engine.start()
        chunks = [chunk async for chunk in listen(engine, job_of(SHORT, max_tokens=2, ignore_eos=True))]
        assert [len(chunk.tokens) for chunk in chunks] == [0, 1, 1] and chunks[-1].finish == "length"
        assert engine.info.vocab_size == 96 and engine.stats().generated_tokens == 2
        await engine.wait_ready()
        assert engine.unready_reason() is None
        await engine.close()


async def test_an_engine_that_cannot_start_says_why() -> None:
    broken = threaded(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        await broken.start()
    with pytest.raises(EngineError, match="not running"):
        _ = broken.info
    assert broken.unready_reason() == "the engine is not running"
