"""The asyncio client of the torch engine: streams, cancellation, faults, start and stop. Its worker is a thread here."""

import asyncio
import random
import threading
import time
from typing import Any

import msgspec
import pytest

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.media_messages import MediaSpan
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.jobs.recovery import STOPPED_ALONE
from antiphon.engine.process.messages import Report, StepReport
from antiphon.engine.protocol import Chunk, Engine, EngineError, EngineInfo, EngineStats, Job, JobChunk
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scripted.engine import ScriptedEngine, ScriptedReply, ScriptStep
from tests.engine.chunk_stream import collect_chunks, get_error_code, stream_chunks
from tests.engine.threaded_engine import build_threaded_engine
from tests.engine.tiny_models import (
    build_tiny_core,
    copy_tiny_model,
    generate_with_transformers,
    join_tokens,
    make_job,
    make_prompts,
)

SHORT_PROMPT, LONG_PROMPT = make_prompts(4, 40)


async def start_engine(*, step_delay: float = 0.0, **options: Any) -> ProcessEngine:
    """Starts an engine each step of which is slowed by `step_delay` seconds, so that long jobs do not end early."""
    core = build_tiny_core(**options)
    step = core.step

    def delayed_step() -> list[JobChunk]:
        time.sleep(step_delay)
        return step()

    core.step = delayed_step  # type: ignore[method-assign]
    engine = build_threaded_engine(lambda: core, max_waiting=options.get("max_waiting", 256))
    await engine.start()
    return engine


async def wait_until_idle(engine: ProcessEngine) -> bool:
    for _ in range(200):
        stats = engine.stats()
        if stats.running == stats.waiting == stats.running_cache_tokens == 0:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_concurrent_streams_get_their_own_tokens() -> None:
    engine = await start_engine(max_num_seqs=3, max_batched_tokens=16)
    prompts = make_prompts(3, 30, 8, 17, 5)
    results = await asyncio.gather(
        *(collect_chunks(engine, make_job(prompt, str(n), max_tokens=12)) for n, prompt in enumerate(prompts))
    )
    assert [join_tokens(chunks) for chunks in results] == [
        generate_with_transformers("llama", prompt, 12) for prompt in prompts
    ]
    assert all(chunks[0] == Chunk() for chunks in results)
    assert await wait_until_idle(engine)
    await engine.close()


async def test_one_report_per_step_carries_the_chunks_of_all_jobs() -> None:
    engine = await start_engine(step_delay=0.005, max_num_seqs=4)
    chunk_counts: list[int] = []
    on_report = engine._on_report

    def count_and_forward(report: Report) -> None:
        if isinstance(report, StepReport):
            chunk_counts.append(len(report.chunks))
        on_report(report)

    assert engine._jobs.connection is not None
    engine._jobs.connection._on_report = count_and_forward
    jobs = [make_job(SHORT_PROMPT, str(n), max_tokens=20, ignore_eos=True) for n in range(4)]
    await asyncio.gather(*(collect_chunks(engine, job) for job in jobs))
    assert sum(chunk_counts) == 4 * 21 and max(chunk_counts) == 4 and len(chunk_counts) < 40
    await engine.close()


async def test_closing_a_stream_frees_its_slot() -> None:
    engine = await start_engine(step_delay=0.01, max_num_seqs=1)
    stream = stream_chunks(engine, make_job(SHORT_PROMPT, "endless", ignore_eos=True))
    assert await anext(stream) == Chunk()
    await anext(stream)
    assert engine.stats().running == 1
    await stream.aclose()
    assert len(await collect_chunks(engine, make_job(SHORT_PROMPT, "next", max_tokens=2))) == 3
    assert await wait_until_idle(engine)
    await engine.close()


async def test_cancel_ends_a_running_stream_and_rejects_a_waiting_one() -> None:
    engine = await start_engine(step_delay=0.01, max_num_seqs=1)
    running = stream_chunks(engine, make_job(SHORT_PROMPT, "running", ignore_eos=True))
    await anext(running)
    waiting = asyncio.create_task(collect_chunks(engine, make_job(SHORT_PROMPT, "waiting")))
    await asyncio.sleep(0.05)
    await engine.cancel("waiting")
    with pytest.raises(EngineError) as caught:
        await waiting
    assert (caught.value.code, caught.value.retryable) == ("cancelled", False), "its caller gave it up"
    await engine.cancel("running")
    await engine.cancel("unknown")
    assert [chunk async for chunk in running][-1].finish == "cancelled"
    assert await wait_until_idle(engine)
    await engine.close()


async def test_cancelling_the_task_of_a_job_frees_its_slot() -> None:
    engine = await start_engine(step_delay=0.01, max_num_seqs=1)
    task = asyncio.create_task(collect_chunks(engine, make_job(SHORT_PROMPT, ignore_eos=True)))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await wait_until_idle(engine)
    await engine.close()


async def test_model_fault_fails_the_stream_and_the_next_job_runs() -> None:
    model = copy_tiny_model("llama")
    engine = build_threaded_engine(lambda: build_core_from_model(model, options=EngineOptions(max_num_seqs=2)))
    await engine.start()
    stream = stream_chunks(engine, make_job(SHORT_PROMPT, "unlucky", ignore_eos=True))
    await anext(stream)
    handle = model.lm_head.register_forward_hook(lambda *_: 1 / 0)
    last = [chunk async for chunk in stream][-1]
    handle.remove()
    assert last.finish == "error" and last.fault is not None and last.fault.code == "server_error"
    assert join_tokens(
        await collect_chunks(engine, make_job(SHORT_PROMPT, max_tokens=5))
    ) == generate_with_transformers("llama", SHORT_PROMPT, 5)
    await engine.close()


async def test_core_fault_fails_the_stream_alone_and_the_next_job_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = await start_engine()
    with monkeypatch.context() as patch:
        patch.setattr(Core, "_run_model", lambda *_: 1 / 0)
        chunks = await collect_chunks(engine, make_job(SHORT_PROMPT))
    assert chunks[-1].fault == STOPPED_ALONE
    assert len(await collect_chunks(engine, make_job(SHORT_PROMPT, max_tokens=1))) == 2
    await engine.close()


async def test_invalid_and_excess_jobs_are_rejected_before_the_first_chunk() -> None:
    engine = await start_engine(step_delay=0.01, max_num_seqs=1, max_waiting=1)
    assert await get_error_code(engine, make_job([5] * 256)) == "context_length_exceeded"
    assert await get_error_code(engine, make_job([])) == "invalid_request"
    streams = [stream_chunks(engine, make_job(SHORT_PROMPT, name, ignore_eos=True)) for name in "ab"]
    await anext(streams[0])
    waiting = asyncio.create_task(anext(streams[1]))
    await asyncio.sleep(0.05)
    assert await get_error_code(engine, make_job(SHORT_PROMPT, "a")) == "invalid_request"
    assert await get_error_code(engine, make_job(SHORT_PROMPT, "c")) == "server_is_overloaded"
    await streams[0].aclose()
    assert await waiting == Chunk()
    await streams[1].aclose()
    await engine.close()


async def test_exceeded_deadline_ends_the_stream_with_a_fault() -> None:
    engine = await start_engine(step_delay=0.01, max_num_seqs=1)
    fault = (await collect_chunks(engine, make_job(SHORT_PROMPT, deadline=0.1, ignore_eos=True)))[-1].fault
    assert fault is not None and fault.code == "deadline_exceeded"
    await engine.close()


async def test_closing_the_engine_ends_its_streams_and_its_thread() -> None:
    engine = await start_engine(step_delay=0.01, max_num_seqs=1)
    running = stream_chunks(engine, make_job(SHORT_PROMPT, "a", ignore_eos=True))
    await anext(running)
    waiting = asyncio.create_task(get_error_code(engine, make_job(SHORT_PROMPT, "b")))
    await asyncio.sleep(0)
    closing = asyncio.create_task(engine.close())
    last = [chunk async for chunk in running][-1]
    assert last.finish == "error" and last.fault is not None and last.fault.code == "engine_unavailable"
    assert await waiting == "engine_unavailable"
    await closing
    await engine.close()
    assert engine.stats() == EngineStats()
    assert await get_error_code(engine, make_job(SHORT_PROMPT)) == "engine_unavailable"
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]
    await engine.start()
    assert len(await collect_chunks(engine, make_job(SHORT_PROMPT, max_tokens=1))) == 2
    await engine.close()


async def test_abandoned_streams_free_their_slots_and_change_no_tokens() -> None:
    engine, generator = await start_engine(max_num_seqs=4, max_batched_tokens=16), random.Random(3)
    jobs = [
        make_job(prompt, str(n), temperature=n % 2, seed=n, max_tokens=generator.randrange(1, 20), ignore_eos=True)
        for n, prompt in enumerate(make_prompts(*(generator.randrange(1, 50) for _ in range(24))))
    ]

    async def read_stream(job: Job) -> list[int] | None:
        stream = stream_chunks(engine, job)
        tokens: list[int] = []
        async for chunk in stream:
            tokens += chunk.tokens
            if int(job.id) % 3 == 0 and len(tokens) > 2:
                await stream.aclose()
                return None
        return tokens

    results = await asyncio.gather(*(read_stream(job) for job in jobs))
    assert await wait_until_idle(engine)
    for job, tokens in zip(jobs, results, strict=True):
        if tokens is not None:
            assert join_tokens(await collect_chunks(engine, job)) == tokens
    await engine.close()


async def test_cancelled_start_leaves_a_closed_engine() -> None:
    gate = threading.Event()

    def build_core_slowly() -> Core:
        gate.wait(5)
        return build_tiny_core()

    engine = build_threaded_engine(build_core_slowly)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0.01)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    gate.set()
    await engine.close()
    assert engine.stats() == EngineStats()


async def test_both_engines_implement_the_protocol() -> None:
    engines: list[Engine] = [
        build_threaded_engine(build_tiny_core),
        ScriptedEngine(
            [ScriptedReply(name="a", output=(ScriptStep(ids=(7, 8)),))],
            encode=lambda text: [],
            info=EngineInfo(max_model_len=99, vocab_size=96),
        ),
    ]
    for engine in engines:
        await engine.start()
        chunks = await collect_chunks(engine, make_job(SHORT_PROMPT, max_tokens=2, ignore_eos=True))
        assert [len(chunk.tokens) for chunk in chunks] == [0, 1, 1] and chunks[-1].finish == "length"
        assert engine.info.vocab_size == 96 and engine.stats().generated_tokens == 2
        await engine.wait_ready()
        assert engine.unready_reason() is None
        await engine.close()


async def test_failed_start_reports_the_reason() -> None:
    engine = build_threaded_engine(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        await engine.start()
    with pytest.raises(EngineError, match="not running"):
        _ = engine.info
    assert engine.unready_reason() == "the engine is not running"


async def test_job_that_cannot_be_encoded_gives_its_place_back() -> None:
    engine = await start_engine(max_num_seqs=1, max_waiting=1)
    try:
        for number in range(8):
            job = make_job(SHORT_PROMPT, f"huge {number}", max_tokens=2**70)
            job = msgspec.structs.replace(job, media=(MediaSpan(key=bytes(32), offset=0, length=1, rows=1),))
            with pytest.raises(OverflowError):
                await collect_chunks(engine, job)
        assert not engine._jobs.media._jobs
        chunks = await collect_chunks(engine, make_job(SHORT_PROMPT, "valid", max_tokens=2))
        assert chunks[-1].finish == "length"
    finally:
        await engine.close()
