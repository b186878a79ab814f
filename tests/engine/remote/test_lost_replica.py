"""Replicas that are lost in the middle of the output: jobs continue at others, or at the same one after its restart."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import cache
from random import Random
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher

from antiphon.engine.protocol import Chunk
from antiphon.engine.remote.options import RemoteTimeouts
from antiphon.engine.remote.remote_job import MAX_MOVES
from antiphon.harmony.grammar import relax_whitespace
from tests.engine.remote.fake_server import FakeServer, Pause, Reply, Reset, json_reply, play_vllm, sse, vllm_tokens
from tests.engine.remote.hashing_model import GRAMMAR, HashingModel
from tests.engine.remote.remote_helpers import (
    EOS,
    FAST,
    HELLO,
    follow_grammars,
    load_model,
    load_tokenizer,
    merge_chunks,
    remote_engine,
    run_job,
)
from tests.progress import HANG_TIMEOUT_S

BROKEN = Reply([*sse(vllm_tokens(50), end=False), Reset()])
"""A reply with one token, after which the connection is lost."""


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.002)


def patient(**times: float) -> RemoteTimeouts:
    return msgspec.structs.replace(FAST, **times)


def bodies(servers: list[FakeServer]) -> list[dict[str, Any]]:
    return [job.body for server in servers for job in server.jobs]


class TestOneJob:
    """The reader sees a pause, and each token once."""

    async def test_job_continues_at_another_replica(self) -> None:
        async with remote_engine(2) as (engine, servers):
            replies = iter([BROKEN])
            for server in servers:
                server.answer_job = lambda _: next(replies, play_vllm(51, 52, EOS, cached=4))
            chunks = await run_job(engine, max_tokens=9)
            assert [chunk.tokens for chunk in chunks] == [(), (50,), (51,), (52,), (EOS,)]
            assert [len(server.jobs) for server in servers] == [1, 1]
            first, second = sorted(bodies(servers), key=lambda body: len(body["prompt"]))
            assert (first["prompt"], second["prompt"]) == ([*HELLO], [*HELLO, 50])
            assert (first["max_tokens"], second["max_tokens"]) == (9, 8)
            assert max(chunk.cached_tokens for chunk in chunks) == 0, "it found what the first one has computed"
            stats = engine.stats()
            assert (stats.generated_tokens, stats.prompt_tokens) == (4, len(HELLO))
            assert (stats.finished_jobs, stats.failed_jobs, stats.running, stats.waiting) == (1, 0, 0, 0)

    async def test_job_continues_after_the_restart_of_the_only_server(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [Reply([*sse(vllm_tokens(50), end=False), Pause()])]
            job = asyncio.create_task(run_job(engine))
            await wait_until(lambda: engine.stats().running == 1)
            await server.kill()
            await wait_until(lambda: engine.unready_reason() is not None)
            assert (engine.stats().running, engine.stats().waiting) == (0, 1)
            await server.start()
            assert merge_chunks(await job) == (50, 50, 51, EOS)

    async def test_log_probabilities_come_once(self) -> None:
        async with remote_engine(2) as (engine, servers):
            model, whole = HashingModel(), await undisturbed(max_tokens=12, top_logprobs=0)
            replies = iter([4, 7, 9])

            def answer(body: dict[str, Any]) -> Reply:
                reply, end = model.answer(body), next(replies, None)
                return reply if end is None else Reply([*reply.parts[: end - len(body["prompt"]) + 3], Reset()])

            for server in servers:
                server.answer_job = answer
            chunks = await run_job(engine, max_tokens=12, top_logprobs=0)
            assert merge_chunks(chunks) == merge_chunks(whole)
            assert [chunk.logprobs for chunk in chunks if chunk.logprobs] == [
                chunk.logprobs for chunk in whole if chunk.logprobs
            ]

    async def test_lost_last_token_is_the_end(self) -> None:
        """The limit is reached by what was passed on, so that nothing is left to ask for."""
        async with remote_engine() as (engine, [server]):
            server.replies = [Reply([*sse(vllm_tokens(50), vllm_tokens(51), end=False), Reset()])]
            chunks = await run_job(engine, max_tokens=2)
            assert (merge_chunks(chunks), chunks[-1].finish, len(server.jobs)) == ((50, 51), "length", 1)

    @pytest.mark.parametrize(
        "end",
        [
            [Reset()],
            sse(),
            sse({"error": {"message": "EngineCore died", "code": 500}}),
            [b"data: {nonsense\n\n"],
            sse(vllm_tokens(finish="abort")),
            sse(vllm_tokens(99_999)),
        ],
    )
    async def test_broken_streams(self, end: list[Any]) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [Reply([*sse(vllm_tokens(50), end=False), *end])]
            assert merge_chunks(await run_job(engine)) == (50, 50, 51, EOS)

    async def test_fault_of_the_request_is_not_tried_again(self) -> None:
        async with remote_engine(2) as (engine, servers):
            fault = sse({"error": {"message": "bad", "code": 400}})
            for server in servers:
                server.default = Reply([*sse(vllm_tokens(50), end=False), *fault])
            chunks = await run_job(engine)
            assert chunks[-1].fault is not None and len(bodies(servers)) == 1
            replies = iter([BROKEN])
            for server in servers:
                server.answer_job = lambda _: next(replies, json_reply({"error": {"message": "bad"}}, 400))
            chunks = await run_job(engine)
            assert merge_chunks(chunks) == (50,) and chunks[-1].fault is not None
            assert chunks[-1].fault.message == "the engine stopped in the middle of the output"

    async def test_busy_server_is_asked_again(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [BROKEN, *[json_reply({}, 429)] * 5, play_vllm(51, EOS)]
            assert merge_chunks(await run_job(engine)) == (50, 51, EOS)

    async def test_cancelled_while_it_waits(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [Reply([*sse(vllm_tokens(50), end=False), Pause()])]
            job = asyncio.create_task(run_job(engine))
            await wait_until(lambda: engine.stats().running == 1)
            await server.kill()
            await wait_until(lambda: engine.stats().waiting == 1)
            await engine.cancel("job")
            assert (await job)[-1].finish == "cancelled"


class TestLimits:
    """Waits of a job, and the number of times that it continues."""

    async def test_number_of_moves(self) -> None:
        for num_losses in (MAX_MOVES, MAX_MOVES + 1):
            async with remote_engine(2) as (engine, servers):
                replies = iter([BROKEN] * num_losses)
                for server in servers:
                    server.answer_job = lambda _, left=replies: next(left, play_vllm(51, EOS))
                chunks = await run_job(engine)
                assert (chunks[-1].fault is None) == (num_losses == MAX_MOVES)
                assert len(bodies(servers)) == MAX_MOVES + 1
                assert merge_chunks(chunks)[:3] == (50, 50, 50)

    async def test_unreachable_servers_are_no_moves(self) -> None:
        async with remote_engine(2, timeouts=patient(max_reconnect_delay_s=0.02)) as (engine, servers):
            for server in servers:
                server.replies = [Reply([*sse(vllm_tokens(50), end=False), Pause()])]
            job = asyncio.create_task(run_job(engine))
            await wait_until(lambda: engine.stats().running == 1)
            for server in servers:
                await server.kill()
            await asyncio.sleep(0.3)
            await servers[0].start()
            servers[0].replies = []
            assert merge_chunks(await job) == (50, 50, 51, EOS)

    async def test_time_of_the_wait(self) -> None:
        async with remote_engine(timeouts=patient(continue_within_s=0.15)) as (engine, [server]):
            server.replies = [Reply([*sse(vllm_tokens(50), end=False), Pause()])]
            job = asyncio.create_task(run_job(engine))
            await wait_until(lambda: engine.stats().running == 1)
            await server.kill()
            lost_at = asyncio.get_running_loop().time()
            chunks = await job
            assert chunks[-1].fault is not None and chunks[-1].fault.code == "engine_unavailable"
            assert 0.1 < asyncio.get_running_loop().time() - lost_at < 5.0

    async def test_busy_server_is_asked_no_longer_than_that(self) -> None:
        async with remote_engine(timeouts=patient(continue_within_s=0.3)) as (engine, [server]):
            server.replies, server.default = [BROKEN], json_reply({}, 429)
            assert (await run_job(engine))[-1].fault is not None
            assert len(server.jobs) > 2

    async def test_strict_fails_what_a_server_cannot_count(self) -> None:
        for fields, continues in (
            ({"seed": 3}, False),
            ({"presence_penalty": 0.5}, False),
            ({"temperature": 0.0}, True),
        ):
            async with remote_engine(2, continuation="strict") as (engine, servers):
                for server in servers:
                    server.default = BROKEN
                chunks = await run_job(engine, **fields)
                assert chunks[-1].fault is not None
                assert len(bodies(servers)) == (MAX_MOVES + 1 if continues else 1)

    async def test_new_job_of_an_earlier_run_waits_for_a_server(self) -> None:
        async with remote_engine(timeouts=patient(retry_window_s=0.0)) as (engine, [server]):
            await server.kill()
            await wait_until(lambda: engine.unready_reason() is not None)
            job = asyncio.create_task(run_job(engine, generated=(50,)))
            await asyncio.sleep(0.05)
            await server.start()
            assert merge_chunks(await job) == (50, 51, EOS)


class TestManyJobs:
    """Replicas are killed again and again; no stream shows it."""

    async def test_hundred_kills(self) -> None:
        """The tokens of each job are those of an undisturbed run, also if all replicas are gone for a moment."""
        model, random, num_kills, num_jobs = HashingModel(delay_s=0.002), Random(0), 0, 0
        times = patient(max_reconnect_delay_s=0.02)
        async with remote_engine(2, timeouts=times, grammar="off") as (engine, servers):
            for server in servers:
                server.answer_job, server.decode = model.answer, None  # so that handshakes are short
            while num_kills < 100:
                prompts = [(*HELLO, 10 * num_jobs + number) for number in range(4)]
                jobs = [asyncio.create_task(run_job(engine, str(p), tokens=p, max_tokens=40)) for p in prompts]
                await wait_until(lambda: engine.stats().running == 4)
                one_by_one = [[server] for server in random.choices(servers, k=MAX_MOVES - 1)]
                for victims in random.choice((one_by_one, [servers])):  # a job may lose both at once
                    await wait_until(lambda: engine.stats().running > 0 or engine.stats().waiting == 0)
                    num_kills += sum(engine.replicas[servers.index(victim)].stats.running > 0 for victim in victims)
                    await kill_and_restart(victims)
                for prompt, job in zip(prompts, jobs, strict=True):
                    assert merge_chunks(await job) == tuple(model.generate(prompt, 40, None))
                num_jobs += 4
            assert engine.stats().failed_jobs == 0

    async def test_strict_calls_over_the_seam(self) -> None:
        """200 jobs under a grammar, each cut off at other tokens: every call is the one of an undisturbed run."""
        model = HashingModel(GRAMMAR, prompt_length=len(HELLO) + 1)
        num_valid = 0
        async for prompt, chunks in run_cut_jobs(model, GRAMMAR, 200):
            num_valid += merge_chunks(chunks) == tuple(model.generate(prompt, 100, GRAMMAR))
        assert num_valid == 200 and model.num_masked > 100

    async def test_grammar_of_a_dialect_over_the_seam(self) -> None:
        """The grammar has markers, text that must not contain some, JSON and nested grammars."""
        probe = load_model()[0].grammar_probe
        assert probe is not None
        relaxed = relax_whitespace(probe.grammar)
        model, num_ended = HashingModel(relaxed, prompt_length=len(HELLO) + 1), 0
        async for _, chunks in run_cut_jobs(model, probe.grammar, 40):
            matcher = LLMatcher(load_tokenizer(), relaxed)
            assert matcher.consume_tokens([token for token in merge_chunks(chunks) if token != EOS])
            num_ended += chunks[-1].finish == "stop" and matcher.is_accepting()
            assert chunks[-1].finish in ("stop", "length")
        assert num_ended > 20 and model.num_masked > 20


async def run_cut_jobs(
    model: HashingModel, grammar: str, count: int
) -> AsyncIterator[tuple[tuple[int, ...], list[Chunk]]]:
    """Runs jobs under a grammar on two servers, which break off half of the replies. Yields prompts and chunks."""
    random, num_cuts = Random(0), Counter[int]()

    def answer(body: dict[str, Any]) -> Reply:
        parts, name = model.answer(body).parts, body["prompt"][len(HELLO)]
        if num_cuts[name] >= MAX_MOVES or random.random() < 0.5:
            return Reply(parts)
        num_cuts[name] += 1
        return Reply([*parts[: random.randrange(1, len(parts))], Reset()])

    times = patient(max_reconnect_delay_s=0.02)
    async with remote_engine(2, timeouts=times, probes=follow_grammars_alike) as (engine, servers):
        for server in servers:
            server.answer_job, server.decode = answer, None
        prompts = [(*HELLO, 100 + number) for number in range(count)]
        for start in range(0, count, 20):
            part = prompts[start : start + 20]
            jobs = [run_job(engine, str(prompt), tokens=prompt, grammar=grammar, max_tokens=200) for prompt in part]
            for prompt, chunks in zip(part, await asyncio.gather(*jobs), strict=True):
                yield prompt, chunks
    assert num_cuts.total() >= count


@cache
def play_probe(body: str) -> Reply | None:
    return follow_grammars(json.loads(body))


def follow_grammars_alike(body: dict[str, Any]) -> Reply | None:
    """Answers equal probes with the same reply, which takes less time."""
    return play_probe(json.dumps(body))


async def kill_and_restart(servers: list[FakeServer]) -> int:
    """Kills servers that have jobs, and starts them again after a moment. Returns how many it has killed."""
    for server in servers:
        await server.kill()
    await asyncio.sleep(0.02)
    for server in servers:
        await server.start()
    return len(servers)


async def undisturbed(**fields: Any) -> list[Chunk]:
    """Returns the chunks of a job whose server is not lost."""
    async with remote_engine() as (engine, [server]):
        server.answer_job = HashingModel().answer
        return await run_job(engine, **fields)
