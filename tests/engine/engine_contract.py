"""The contract of `engine.protocol`, as checks that run against any started engine.

`CHECKS` lists them. A check gets an `EngineCase`: the engine, a prompt, and what is known about the engine's output.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from antiphon.engine.protocol import Chunk, Engine, EngineError, Job, Sampling

WAIT_S = 60.0


@dataclass
class EngineCase:
    """An engine whose jobs never end by themselves within 64 tokens, unless a parameter of the job ends them."""

    engine: Engine
    prompt: tuple[int, ...]
    """Token ids of a prompt with at least 32 tokens."""
    has_logprobs: bool = True
    follows_bias: bool = True
    """A bias of 100 makes the engine generate nothing but that token."""
    counts_cached: bool = True
    has_grammars: bool = False
    ignore_eos: bool = True
    """The engine's jobs must ignore the end token, so that they continue."""
    numbers: list[int] = field(default_factory=lambda: [0])

    def make_job(self, **fields: Any) -> Job:
        """Returns a job with an id of its own; `sampling` fields may be given by name."""
        self.numbers[0] += 1
        names = set(Sampling.__struct_fields__)
        sampling = {name: fields.pop(name) for name in list(fields) if name in names}
        sampling = {"ignore_eos": self.ignore_eos, "max_tokens": 64, **sampling}
        fields = {"id": f"job-{self.numbers[0]}", "tokens": self.prompt, **fields}
        return Job(**fields, sampling=Sampling(**sampling))

    async def run(self, **fields: Any) -> list[Chunk]:
        """Runs a job to its end and checks the rules that hold for all chunks."""
        job, chunks = self.make_job(**fields), list[Chunk]()
        async with asyncio.timeout(WAIT_S):
            await self.engine.generate(job, chunks.append)
        check_chunks(job, chunks)
        return chunks

    async def refuse(self, **fields: Any) -> EngineError:
        """Runs a job that must be refused before its admission."""
        chunks: list[Chunk] = []
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(EngineError) as caught:
                await self.engine.generate(self.make_job(**fields), chunks.append)
        assert not chunks
        return caught.value

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)


def check_chunks(job: Job, chunks: list[Chunk]) -> None:
    """Checks rules 1, 2 and 4, and the form of log-probabilities."""
    assert chunks[0].tokens == () and chunks[0].finish is None, "the first chunk marks the admission"
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    last = chunks[-1]
    assert (last.finish == "error") == (last.fault is not None)
    assert last.stop_id is None or last.tokens[-1] == last.stop_id
    for chunk in chunks:
        expected = len(chunk.tokens) if job.sampling.top_logprobs is not None else 0
        assert len(chunk.logprobs) == expected
        assert tuple(entry.id for entry in chunk.logprobs) == (chunk.tokens if expected else ())


def join(chunks: list[Chunk]) -> tuple[int, ...]:
    return tuple(token for chunk in chunks for token in chunk.tokens)


async def limit_of_tokens(case: EngineCase) -> None:
    for limit in (1, 2, 7):
        chunks = await case.run(max_tokens=limit)
        assert len(join(chunks)) == limit and chunks[-1].finish == "length"


async def stop_id_ends_the_turn_and_is_its_last_token(case: EngineCase) -> None:
    first, second = join(await case.run(max_tokens=2, seed=1, temperature=0.0))
    chunks = await case.run(max_tokens=8, seed=1, temperature=0.0, stop_ids=(second,))
    stops = join(chunks)
    assert stops == ((first, second) if first != second else (first,))
    assert (chunks[-1].finish, chunks[-1].stop_id) == ("stop", second)


async def bias_decides_the_token(case: EngineCase) -> None:
    if case.follows_bias:
        assert set(join(await case.run(max_tokens=4, logit_bias={40: 100.0}))) == {40}
    error = await case.refuse(logit_bias={case.engine.info.vocab_size: 1.0}) if case.follows_bias else None
    assert error is None or error.code == "invalid_request"


async def log_probabilities(case: EngineCase) -> None:
    if not case.has_logprobs:
        return
    for chunk in await case.run(max_tokens=4, top_logprobs=2, temperature=0.0):
        for entry in chunk.logprobs:
            assert entry.logprob <= 0.0 and len(entry.top) == 2
            assert entry.top[0][1] >= entry.top[1][1]
            assert entry.top[0][0] == entry.id, "at temperature 0 the most likely token is chosen"
    assert all(entry.top == () for chunk in await case.run(max_tokens=2, top_logprobs=0) for entry in chunk.logprobs)


async def seed_decides_the_output(case: EngineCase) -> None:
    if not case.engine.info.capabilities.seed:
        return
    assert join(await case.run(max_tokens=8, seed=5)) == join(await case.run(max_tokens=8, seed=5))


async def prompt_that_comes_again_is_cached(case: EngineCase) -> None:
    if not case.counts_cached:
        return
    length = 400 if case.engine.info.max_model_len > 1000 else 200
    prompt = tuple(40 + n % 50 for n in range(length))
    await case.run(tokens=prompt, max_tokens=2)
    chunks = await case.run(tokens=prompt, max_tokens=2)
    assert max(chunk.cached_tokens for chunk in chunks) >= length / 2


async def cached_tokens_are_those_of_the_prompt(case: EngineCase) -> None:
    """What an earlier run generated may be cached, too, and is no part of the prompt."""
    prompt = tuple(40 + n % 50 for n in range(60))
    whole = join(await case.run(tokens=prompt, max_tokens=60, temperature=0.0))
    for generated in (whole[:50], None):
        chunks = await case.run(tokens=prompt, max_tokens=60, temperature=0.0, generated=generated)
        assert max(chunk.cached_tokens for chunk in chunks) <= len(prompt)


async def cancelled_job_frees_its_slot(case: EngineCase) -> None:
    job, chunks = case.make_job(max_tokens=2000), list[Chunk]()
    task = asyncio.create_task(case.engine.generate(job, chunks.append))
    await case.wait_until(lambda: len(join(chunks)) > 0)
    await case.engine.cancel(job.id)
    async with asyncio.timeout(WAIT_S):
        await task
    check_chunks(job, chunks)
    assert chunks[-1].finish == "cancelled"
    await case.wait_until(lambda: case.engine.stats().running == 0)
    await case.engine.cancel(job.id)


async def caller_that_leaves_frees_its_slot(case: EngineCase) -> None:
    chunks: list[Chunk] = []
    task = asyncio.create_task(case.engine.generate(case.make_job(max_tokens=2000), chunks.append))
    await case.wait_until(lambda: len(join(chunks)) > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await case.wait_until(lambda: case.engine.stats().running == case.engine.stats().waiting == 0)


async def deadline_ends_the_job(case: EngineCase) -> None:
    chunks: list[Chunk] = []
    job = case.make_job(max_tokens=2000, deadline=0.03)
    try:
        await case.engine.generate(job, chunks.append)
    except EngineError as error:
        code = error.code
    else:
        check_chunks(job, chunks)
        code = chunks[-1].fault.code if chunks[-1].fault else None
    assert code == "deadline_exceeded"


async def id_of_a_running_job_is_refused(case: EngineCase) -> None:
    job, chunks = case.make_job(max_tokens=2000), list[Chunk]()
    task = asyncio.create_task(case.engine.generate(job, chunks.append))
    await case.wait_until(lambda: len(chunks) > 0)
    assert (await case.refuse(id=job.id)).code == "invalid_request"
    await case.engine.cancel(job.id)
    await task


async def prompt_that_does_not_fit_is_refused(case: EngineCase) -> None:
    tokens = (40,) * case.engine.info.max_model_len
    assert (await case.refuse(tokens=tokens)).code == "context_length_exceeded"


async def error_of_the_caller_ends_the_job(case: EngineCase) -> None:
    def fail(chunk: Chunk) -> None:
        if chunk.tokens:
            raise RuntimeError("broken reader")

    with pytest.raises(RuntimeError, match="broken reader"):
        await case.engine.generate(case.make_job(), fail)
    assert len(join(await case.run(max_tokens=2))) == 2


async def jobs_run_at_once(case: EngineCase) -> None:
    results = await asyncio.gather(*(case.run(max_tokens=5, seed=number) for number in range(6)))
    assert [len(join(chunks)) for chunks in results] == [5] * 6
    stats = case.engine.stats()
    assert (stats.running, stats.waiting, stats.running_cache_tokens) == (0, 0, 0)
    assert stats.generated_tokens >= 30


async def job_continues_after_its_own_tokens(case: EngineCase) -> None:
    """Rule 6: what an earlier run has generated counts for everything that depends on earlier tokens."""
    capabilities = case.engine.info.capabilities
    fields: dict[str, Any] = {"max_tokens": 24, "seed": 5 if capabilities.seed else None}
    if capabilities.continues_exactly:
        fields |= {"min_tokens": 9, "presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
    if case.has_logprobs:
        fields["top_logprobs"] = 2
    whole = await case.run(**fields)
    tokens = join(whole)
    for cut in (0, 1, 8, 23, 24):
        rest = await case.run(**fields, generated=tokens[:cut])
        assert len(join(rest)) == 24 - cut and rest[-1].finish == "length"
        if capabilities.continues_exactly:
            assert join(rest) == tokens[cut:]
            # Bits are compared where a packed form promises them: see test_continuation.py.
            scores = [entry.logprob for chunk in whole for entry in chunk.logprobs]
            assert [entry.logprob for chunk in rest for entry in chunk.logprobs] == pytest.approx(
                scores[cut:], abs=1e-4
            )


async def closed_engine_ends_its_jobs_and_takes_none(case: EngineCase) -> None:
    job, chunks = case.make_job(max_tokens=2000), list[Chunk]()
    task = asyncio.create_task(case.engine.generate(job, chunks.append))
    await case.wait_until(lambda: len(join(chunks)) > 0)
    await case.engine.close()
    async with asyncio.timeout(WAIT_S):
        await task
    check_chunks(job, chunks)
    assert chunks[-1].fault is not None and chunks[-1].fault.code == "engine_unavailable"
    assert (await case.refuse()).code == "engine_unavailable"


CHECKS: tuple[Callable[[EngineCase], Awaitable[None]], ...] = (
    limit_of_tokens,
    stop_id_ends_the_turn_and_is_its_last_token,
    bias_decides_the_token,
    log_probabilities,
    seed_decides_the_output,
    prompt_that_comes_again_is_cached,
    cached_tokens_are_those_of_the_prompt,
    cancelled_job_frees_its_slot,
    caller_that_leaves_frees_its_slot,
    deadline_ends_the_job,
    id_of_a_running_job_is_refused,
    prompt_that_does_not_fit_is_refused,
    error_of_the_caller_ends_the_job,
    jobs_run_at_once,
    job_continues_after_its_own_tokens,
    closed_engine_ends_its_jobs_and_takes_none,
)
