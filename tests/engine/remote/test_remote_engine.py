"""The engine over remote servers: output, faults, retries, cancellation, the handshake."""

import asyncio
from typing import Any

import msgspec
import pytest

from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import Chunk, EngineError
from antiphon.engine.remote.engine import RemoteEngine
from tests.engine.chunk_stream import stream_chunks
from tests.engine.remote.fake_server import (
    FakeServer,
    Pause,
    Reply,
    Reset,
    json_reply,
    play_vllm,
    sse,
    vllm_tokens,
    vllm_usage,
)
from tests.engine.remote.remote_helpers import (
    EOS,
    FAST,
    build_engine,
    check_rules,
    drop_grammars,
    follow_gbnf,
    follow_grammars,
    load_model,
    load_tokenizer,
    make_job,
    merge_chunks,
    play_llama,
    remote_engine,
    run_job,
)
from tests.progress import HANG_TIMEOUT_S

IMPATIENT = msgspec.structs.replace(FAST, continue_within_s=0.0)
GRAMMAR = 'start: "a" "b"? "c"'


async def fail_job(engine: RemoteEngine, job_id: str = "job", **fields: Any) -> EngineError:
    chunks: list[Chunk] = []
    with pytest.raises(EngineError) as caught:
        await engine.generate(make_job(job_id, **fields), chunks.append)
    assert not chunks
    return caught.value


async def test_tokens_and_cached_count_of_a_job() -> None:
    async with remote_engine(default=play_vllm(50, 51, EOS, cached=3)) as (engine, [server]):
        chunks = await run_job(engine, max_tokens=10, temperature=0.5)
        assert merge_chunks(chunks) == (50, 51, EOS)
        assert (chunks[-1].finish, chunks[-1].stop_id, chunks[-1].cached_tokens) == ("stop", EOS, 3)
        body = server.jobs[0].body
        assert (body["prompt"], body["max_tokens"], body["temperature"]) == ([40, 41, 42], 10, 0.5)
        assert (body["top_p"], body["top_k"], body["stop_token_ids"]) == (1.0, 0, [EOS])
        assert engine.stats().generated_tokens == 3 and engine.stats().prefix_hit_tokens == 3
        assert (engine.stats().running, engine.stats().waiting, engine.stats().finished_jobs) == (0, 0, 1)


@pytest.mark.parametrize("size", range(1, 60, 7))
async def test_output_does_not_depend_on_how_the_bytes_come(size: int) -> None:
    data = b"".join(sse(vllm_tokens(50), vllm_tokens(51, 52), vllm_tokens(EOS, finish="stop"), vllm_usage(2)))
    data = b": a comment\r\n\r\n" + data.replace(b"\n", b"\r\n")
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    async with remote_engine(default=Reply(parts)) as (engine, _):
        chunks = await run_job(engine)
        assert merge_chunks(chunks) == (50, 51, 52, EOS) and chunks[-1].cached_tokens == 2


async def test_limit_of_tokens_is_that_of_the_context() -> None:
    async with remote_engine(default=play_vllm(50, 51, finish="length")) as (engine, [server]):
        chunks = await run_job(engine)
        assert chunks[-1].finish == "length" and chunks[-1].stop_id is None
        assert server.jobs[0].body["max_tokens"] == 4096 - 3
        await run_job(engine, max_tokens=5)
        await run_job(engine, max_tokens=100_000)
        assert [job.body["max_tokens"] for job in server.jobs[1:]] == [5, 4096 - 3]


async def test_server_that_ignores_stop_ids_and_limits_is_cut() -> None:
    tail = Reply([*sse(vllm_tokens(50, 51), end=False), Pause()])
    async with remote_engine(default=tail) as (engine, [server]):
        chunks = await run_job(engine, stop_ids=(51,))
        assert (merge_chunks(chunks), chunks[-1].finish, chunks[-1].stop_id) == ((50, 51), "stop", 51)
        chunks = await run_job(engine, max_tokens=1)
        assert (merge_chunks(chunks), chunks[-1].finish) == ((50,), "length")
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while server.num_hung_up < 2:
                await asyncio.sleep(0.01)


async def test_logprobs_are_reported_by_id() -> None:
    logprobs = {
        "tokens": ["token_id:50", "token_id:2"],
        "token_logprobs": [-2.0, -0.5],
        "top_logprobs": [{"token_id:50": -2.0, "token_id:60": -1.0}, {"token_id:2": -0.5, "token_id:61": -3.0}],
    }
    reply = Reply(sse(vllm_tokens(50, EOS, finish="stop", logprobs=logprobs), vllm_usage()))
    async with remote_engine(default=reply) as (engine, [server]):
        chunks = await run_job(engine, top_logprobs=1)
        entries = [entry for chunk in chunks for entry in chunk.logprobs]
        assert [(entry.id, entry.logprob, entry.top) for entry in entries] == [
            (50, -2.0, ((60, -1.0),)),
            (2, -0.5, ((2, -0.5),)),
        ]
        assert server.jobs[0].body["logprobs"] == 1


async def test_missing_logprobs_are_a_fault() -> None:
    async with remote_engine() as (engine, _):
        error = await fail_job(engine, top_logprobs=1)
        assert error.code == "engine_unavailable"


async def test_prompt_logprobs_come_in_an_unstreamed_reply() -> None:
    prompt = [None, {"41": {"logprob": -1.0}, "7": {"logprob": -0.5}}, {"42": {"logprob": -0.1}}]
    choice = vllm_tokens(50, EOS, finish="stop", prompt_logprobs=prompt) | {"usage": {"prompt_tokens": 3}}
    async with remote_engine() as (engine, [server]):
        server.replies = [json_reply(choice)]
        chunks = await run_job(engine, prompt_logprobs=1)
        entries = next(chunk.prompt_logprobs for chunk in chunks if chunk.prompt_logprobs)
        assert entries[0] is None
        assert [(entry.id, entry.logprob, entry.top) for entry in entries if entry] == [
            (41, -1.0, ((7, -0.5),)),
            (42, -0.1, ((42, -0.1),)),
        ]
        assert server.jobs[0].body["stream"] is False


async def read_salts(engine: RemoteEngine, server: FakeServer, *owners: str, **fields: Any) -> list[str | None]:
    """Runs a job of each owner. Returns the salts of the requests that the server got."""
    for owner in owners:
        await run_job(engine, owner=owner, **fields)
    return [job.body.get("cache_salt") for job in server.jobs[-len(owners) :]]


async def test_owners_do_not_share_a_prefix_cache() -> None:
    async with remote_engine(separate_owners=True) as (engine, [server]):
        ada, bob, again = await read_salts(engine, server, "ada", "bob", "ada")
        assert ada and bob and ada == again != bob
        salted_ada, salted_bob = await read_salts(engine, server, "ada", "bob", cache_salt="mine")
        assert len({ada, bob, salted_ada, salted_bob}) == 4
        assert not any("ada" in str(salt) for salt in (ada, salted_ada)), "the engine does not learn the owner"


async def test_requests_without_keys_share_a_prefix_cache() -> None:
    async with remote_engine() as (engine, [server]):
        assert await read_salts(engine, server, "", "") == [None, None]


class TestFaults:
    """What goes wrong before the first token is an error, and after it the job's last chunk."""

    @pytest.mark.parametrize(
        ("reply", "code", "retryable"),
        [
            (json_reply({"error": {"message": "bad top_p", "code": 400}}, 400), "invalid_request", False),
            (
                json_reply({"error": {"message": "This model's maximum context length is 4096 tokens."}}, 400),
                "context_length_exceeded",
                False,
            ),
            (Reply(sse({"error": {"message": "Grammar error", "code": 400}})), "invalid_request", False),
            (json_reply({"error": {"message": "The engine is currently busy"}}, 503), "server_is_overloaded", True),
            (json_reply({"message": "slow down"}, 429), "server_is_overloaded", True),
            (json_reply({"error": "no"}, 500), "engine_unavailable", True),
            (json_reply({}, 401), "engine_unavailable", True),
            (Reply([b""], 302, {"Location": "http://evil/"}), "engine_unavailable", True),
            (Reply(sse({"error": {"message": "EngineCore died", "code": 500}})), "engine_unavailable", True),
            (Reply(sse()), "engine_unavailable", True),
            (Reply([b"data: {nonsense\n\n"]), "engine_unavailable", True),
            (Reply([Reset()]), "engine_unavailable", True),
            (Reply(sse(vllm_tokens(finish="abort"))), "engine_unavailable", True),
            (Reply(sse(vllm_tokens(99_999))), "engine_unavailable", True),
        ],
    )
    async def test_fault_before_the_first_token_is_an_error(self, reply: Reply, code: str, retryable: bool) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [reply]
            error = await fail_job(engine)
            assert (error.code, error.retryable) == (code, retryable)
            assert len(server.jobs) == 1
            assert (engine.stats().running, engine.stats().waiting) == (0, 0)

    @pytest.mark.parametrize(
        "end",
        [
            [Reset()],
            sse(),
            sse({"error": {"message": "EngineCore died", "code": 500}}),
            sse({"error": {"message": "bad", "code": 400}}),
            [b"data: {nonsense\n\n"],
            sse(vllm_tokens(finish="abort")),
            sse(vllm_tokens(99_999)),
        ],
    )
    async def test_fault_after_a_token_ends_the_job(self, end: list[Any]) -> None:
        async with remote_engine(2, timeouts=IMPATIENT) as (engine, servers):
            reply = Reply([*sse(vllm_tokens(50), end=False), *end])
            for server in servers:
                server.replies = [reply]
            chunks = await run_job(engine)
            assert merge_chunks(chunks) == (50,)
            assert chunks[-1].fault is not None and chunks[-1].fault.code == "engine_unavailable"
            assert sum(len(server.jobs) for server in servers) == 1, "no job goes on with a time of 0"

    async def test_lost_connection_after_the_finish_is_no_fault(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [Reply([*sse(vllm_tokens(50, EOS, finish="stop"), end=False), Reset()])]
            assert (await run_job(engine))[-1].finish == "stop"

    async def test_silence_is_a_fault(self) -> None:
        async with remote_engine(silence_timeout_s=0.1, timeouts=IMPATIENT) as (engine, [server]):
            server.replies = [Reply([Pause()]), Reply([*sse(vllm_tokens(50), end=False), Pause()])]
            assert (await fail_job(engine)).code == "engine_unavailable"
            await engine.wait_ready()
            chunks = await run_job(engine)
            assert chunks[-1].fault is not None

    async def test_oversized_event_is_a_fault(self) -> None:
        async with remote_engine(timeouts=IMPATIENT) as (engine, [server]):
            server.replies = [Reply([*sse(vllm_tokens(50), end=False), *[b"x" * 100_000] * 20])]
            assert (await run_job(engine))[-1].fault is not None


class TestRetries:
    """A job that got no token is tried on another replica."""

    async def test_job_moves_to_another_replica(self) -> None:
        async with remote_engine(2) as (engine, servers):
            refused: list[Reply] = [json_reply({}, 503)]
            for server in servers:
                server.replies = refused  # the first of the two refuses
            assert merge_chunks(await run_job(engine)) == (50, 51, EOS)
            assert [len(server.jobs) for server in servers] == [1, 1]
            assert len({job.headers["x-request-id"] for server in servers for job in server.jobs}) == 2

    async def test_killed_replica_fails_no_job_without_a_token(self) -> None:
        async with remote_engine(2) as (engine, servers):
            slow = Reply([Pause(0.2), *play_vllm(50, EOS).parts])
            for server in servers:
                server.default = slow
            jobs = [asyncio.create_task(run_job(engine, f"job-{n}", owner=str(n))) for n in range(16)]
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while sum(len(server.jobs) for server in servers) < 16:
                    await asyncio.sleep(0.01)
            await servers[0].kill()
            assert all(merge_chunks(chunks) == (50, EOS) for chunks in await asyncio.gather(*jobs))

    async def test_engine_waits_for_a_server_that_restarts(self) -> None:
        async with remote_engine() as (engine, [server]):
            await server.kill()
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while engine.unready_reason() is None:
                    await asyncio.sleep(0.01)
            job = asyncio.create_task(run_job(engine))
            await asyncio.sleep(0.05)
            await server.start()
            assert merge_chunks(await job) == (50, 51, EOS)

    async def test_job_waits_for_a_server_no_longer_than_the_window(self) -> None:
        async with remote_engine(timeouts=msgspec.structs.replace(FAST, retry_window_s=0.05)) as (engine, [server]):
            await server.kill()
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while engine.unready_reason() is None:
                    await asyncio.sleep(0.005)
                error = await fail_job(engine)
                assert (error.code, error.retryable) == ("engine_unavailable", True)
                assert "cannot be reached" in error.message
                with pytest.raises(EngineError, match="cannot be reached"):
                    await engine.wait_ready()

    async def test_unhealthy_server_takes_no_jobs(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.health_status = 503
            server.overrides["/v1/models"] = json_reply({}, 503)
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while engine.unready_reason() is None:
                    await asyncio.sleep(0.01)
            server.health_status = 200
            server.overrides.clear()
            await engine.wait_ready()

    async def test_idle_connection_that_the_server_closed_is_replaced(self) -> None:
        async with remote_engine() as (engine, [server]):
            await run_job(engine)
            for writer in list(server.writers):
                writer.close()
            assert merge_chunks(await run_job(engine)) == (50, 51, EOS)


class TestEnds:
    """Ends from outside: cancellation, deadlines, closing."""

    async def test_cancelled_job_frees_the_slot(self) -> None:
        async with remote_engine(default=Reply([*sse(vllm_tokens(50), end=False), Pause()])) as (engine, [server]):
            chunks: list[Chunk] = []
            job = asyncio.create_task(engine.generate(make_job(), chunks.append))
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while len(chunks) < 2:
                    await asyncio.sleep(0.01)
                await engine.cancel("job")
                await job
                check_rules(chunks)
                assert chunks[-1].finish == "cancelled"
                while server.num_hung_up < 1:
                    await asyncio.sleep(0.01)

    async def test_job_cancelled_while_waiting_raises(self) -> None:
        async with remote_engine(default=Reply([Pause()])) as (engine, [server]):
            job = asyncio.create_task(fail_job(engine))
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while not server.jobs:
                    await asyncio.sleep(0.01)
                await engine.cancel("job")
                assert (await job).code == "cancelled"

    async def test_caller_that_leaves_hangs_up(self) -> None:
        async with remote_engine(default=Reply([*sse(vllm_tokens(50), end=False), Pause()])) as (engine, [server]):
            chunks = stream_chunks(engine, make_job())
            await anext(chunks)
            await anext(chunks)
            await chunks.aclose()
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while server.num_hung_up < 1:
                    await asyncio.sleep(0.01)
            assert engine.stats().running == engine.stats().waiting == 0

    async def test_deadline(self) -> None:
        async with remote_engine(default=Reply([*sse(vllm_tokens(50), end=False), Pause()])) as (engine, [server]):
            chunks = await run_job(engine, deadline=0.2)
            assert chunks[-1].fault is not None and chunks[-1].fault.code == "deadline_exceeded"
            server.replies = [Reply([Pause()])]
            assert (await fail_job(engine, deadline=0.1)).code == "deadline_exceeded"

    async def test_closing_ends_all_jobs(self) -> None:
        async with remote_engine(default=Reply([*sse(vllm_tokens(50), end=False), Pause()])) as (engine, [_]):
            job = asyncio.create_task(run_job(engine))
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while not engine.stats().running:
                    await asyncio.sleep(0.01)
                await engine.close()
                fault = (await job)[-1].fault
            assert fault is not None and fault.code == "engine_unavailable"
            assert (await fail_job(engine)).code == "engine_unavailable"

    async def test_error_of_the_caller_ends_the_job(self) -> None:
        def fail(chunk: Chunk) -> None:
            if chunk.tokens:
                raise RuntimeError("broken reader")

        async with remote_engine() as (engine, _):
            with pytest.raises(RuntimeError, match="broken reader"):
                await engine.generate(make_job(), fail)
            assert merge_chunks(await run_job(engine)) == (50, 51, EOS)

    async def test_capacity_counts_every_job_once(self) -> None:
        async with remote_engine(capacity=1) as (engine, _):
            await engine.wait_ready()
            assert merge_chunks(await run_job(engine)) == (50, 51, EOS)

    async def test_jobs_over_the_capacity_are_refused(self) -> None:
        async with remote_engine(default=Reply([Pause()]), capacity=1) as (engine, [server]):
            job = asyncio.create_task(fail_job(engine))
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while not server.jobs:
                    await asyncio.sleep(0.005)
            for call in (engine.generate(make_job("other"), lambda _: None), engine.wait_ready()):
                with pytest.raises(EngineError) as caught:
                    await call
                assert caught.value.code == "server_is_overloaded"
            await engine.cancel("job")
            assert (await job).code == "cancelled"


class TestGrammars:
    """Every token under a grammar is checked here."""

    async def test_output_within_the_grammar_passes(self) -> None:
        async with remote_engine() as (engine, [server]):
            tokens = [letter_id("a"), letter_id("c"), EOS]
            server.replies = [play_vllm(*tokens)]
            chunks = await run_job(engine, grammar=GRAMMAR)
            assert merge_chunks(chunks) == tuple(tokens)
            assert server.jobs[0].body["structured_outputs"] == {"grammar": GRAMMAR}

    @pytest.mark.parametrize("letters", ["x", "ab", "abx"])
    async def test_output_that_leaves_the_grammar_ends_the_job(self, letters: str) -> None:
        async with remote_engine() as (engine, [server]):
            tokens = [letter_id(letter) for letter in letters]
            server.replies = [play_vllm(*tokens, EOS)]
            chunks = await run_job(engine, grammar=GRAMMAR)
            assert chunks[-1].fault is not None and "grammar" in chunks[-1].fault.message
            assert engine.replicas[0].stats.grammar_departures == 1

    @pytest.mark.parametrize(("letters", "finish"), [("a", "length"), ("abc", "stop"), ("ac", "stop")])
    async def test_end_that_the_grammar_allows(self, letters: str, finish: str) -> None:
        """The limit may cut the grammar off; an end without an end token must complete it."""
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(*map(letter_id, letters), finish=finish)]
            chunks = await run_job(engine, grammar=GRAMMAR)
            assert (chunks[-1].finish, chunks[-1].fault) == (finish, None)

    async def test_end_before_the_grammar_is_complete_ends_the_job_with_a_fault(self) -> None:
        """A server may report an end without an end token, for example at a stop string of its own."""
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(letter_id("a"))]
            chunks = await run_job(engine, grammar=GRAMMAR)
            assert chunks[-1].fault is not None and "grammar" in chunks[-1].fault.message

    async def test_server_that_begins_to_drop_grammars_loses_the_ability(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.probes = drop_grammars
            server.replies = [play_vllm(letter_id("x"), EOS)]
            await run_job(engine, grammar=GRAMMAR)
            await engine.wait_ready()
            error = await fail_job(engine, grammar=GRAMMAR)
            assert error.code == "grammar_unsupported" and "--structured-outputs-config" in error.message

    async def test_server_that_drops_grammars_is_found_out_in_the_handshake(self) -> None:
        async with remote_engine(probes=drop_grammars) as (engine, [server]):
            assert not engine.info.capabilities.grammar
            error = await fail_job(engine, grammar=GRAMMAR)
            assert error.code == "grammar_unsupported" and not server.jobs
            assert merge_chunks(await run_job(engine)) == (50, 51, EOS)

    async def test_one_failed_probe_does_not_take_the_ability(self) -> None:
        """A server may be busy at that moment, or sample what its library and this one read differently."""
        answers = iter([drop_grammars, lambda _: json_reply({"error": "busy"}, 503)])

        def probe(body: dict[str, Any]) -> Reply | None:
            is_grammar = "structured_outputs" in body
            return (next(answers, follow_grammars) if is_grammar else follow_grammars)(body)

        async with remote_engine(probes=probe) as (engine, _):
            assert engine.info.capabilities.grammar

    async def test_probe_has_no_end_of_reasoning_in_its_prompt(self) -> None:
        """With one in the prompt, vLLM with a reasoning parser follows a grammar that it ignores otherwise."""
        added = {0, 1, 2, *range(1018, 1027)}  # the markers of reasoning and calls are among them
        async with remote_engine() as (_, [server]):
            probes = [request.body for request in server.requests if request.path == "/v1/completions"]
            assert added <= set(load_model()[0].tokenizer_check.ids)
            assert probes and not any(added & set(body["prompt"]) for body in probes)

    async def test_required_grammars_keep_the_server_from_starting(self) -> None:
        with pytest.raises(LoadError, match=r"does not follow grammars .*enable_in_reasoning"):
            async with remote_engine(probes=drop_grammars, grammar="require"):
                pass


async def test_each_status_is_reported_once() -> None:
    """A server that loads for minutes is asked again and again, and the same reason is not reported again."""
    shown: list[str] = []
    async with remote_engine() as (_, [server]):
        await server.kill()
        engine = build_engine([server])
        engine._on_status = shown.append
        start = asyncio.create_task(engine.start())
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while "cannot be reached" not in str(shown):
                await asyncio.sleep(0.005)
            for _ in range(20):
                await engine.replicas[0].shake_hands()
            await server.start()
            await start
        await engine.close()
    assert len([status for status in shown if "cannot be reached" in status]) == 1
    assert shown.count("ready") == 1 and len(shown) == len(set(shown))


class TestTranslatedGrammars:
    """What engines get instead of the grammar of the job, and what clients are told."""

    async def test_syntax_is_lowered_for_older_libraries(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(letter_id("a"), letter_id("a"), EOS)]
            chunks = await run_job(engine, grammar='start: "a"~1..3')
            assert chunks[-1].finish == "stop"
            assert server.jobs[0].body["structured_outputs"] == {"grammar": 'start: "a"{1,3}'}

    @pytest.mark.parametrize(
        "message",
        [
            "Grammar error: 1(14): error parsing signed integer",
            "cannot read structured_outputs",
            "this is wrong:\n   SECRET_RULE: /[a-c]+/",
        ],
    )
    @pytest.mark.parametrize("is_event", [True, False])
    async def test_refused_grammar_is_not_shown(self, message: str, is_event: bool) -> None:
        async with remote_engine() as (engine, [server]):
            error = {"error": {"message": message, "code": 400}}
            server.replies = [Reply(sse(error)) if is_event else json_reply(error, 400)]
            failed = await fail_job(engine, grammar="start: SECRET_RULE\nSECRET_RULE: /[a-c]+/")
            assert failed.code == "grammar_unsupported" and not failed.retryable
            assert "SECRET_RULE" not in failed.message and "1(14)" not in failed.message

    async def test_other_refusals_are_shown(self) -> None:
        async with remote_engine() as (engine, [server]):
            for grammar, code in ((GRAMMAR, "invalid_request"), (None, "invalid_request")):
                server.replies = [json_reply({"error": {"message": "top_p is wrong"}}, 400)]
                error = await fail_job(engine, "job", grammar=grammar)
                assert (error.code, error.message) == (code, "top_p is wrong")
            server.replies = [json_reply({"error": {"message": "no grammar"}}, 400)]
            assert (await fail_job(engine, "job")).message == "no grammar", "the job has none"
            server.replies = [json_reply({"error": {"message": "grammar: maximum context length is 5"}}, 400)]
            assert (await fail_job(engine, "job", grammar=GRAMMAR)).code == "context_length_exceeded"

    async def test_grammar_that_cannot_be_compiled_is_not_shown(self) -> None:
        async with remote_engine() as (engine, [server]):
            error = await fail_job(engine, grammar="start: SECRET_RULE")
            assert error.code == "grammar_unsupported" and "SECRET_RULE" not in error.message and not server.jobs

    async def test_llama_cpp_without_llguidance_follows_gbnf(self) -> None:
        async with remote_engine() as (_, [server]):
            server.owned_by, server.text_field, server.probes = "llamacpp", "content", follow_gbnf
            engine = build_engine([server], separate_owners=True)
            await engine.start()
            server.replies = [play_llama(letter_id("a"), letter_id("c"), EOS), play_llama(letter_id("b"), EOS)]
            chunks = await run_job(engine, grammar=GRAMMAR)
            assert chunks[-1].finish == "stop"
            body = server.jobs[0].body
            assert "root ::= " in body["grammar"]
            added = set(load_model()[0].added_tokens)
            assert {token for token, bias in body["logit_bias"] if bias is False} == added - {EOS}
            chunks = await run_job(engine, grammar=GRAMMAR)
            assert chunks[-1].fault is not None, "every token is checked here"
            await engine.wait_ready()
            error = await fail_job(engine, grammar='start: start "a" | "b"')
            assert error.code == "grammar_unsupported" and "left recursion" in error.message
            await engine.close()


class TestHandshake:
    """A server that does not fit is told in one line with the remedy."""

    @pytest.mark.parametrize(
        ("attributes", "options", "message"),
        [
            ({"version": "0.11.2"}, {}, "runs vllm 0.11.2; 0.12 or later is needed"),
            ({"models": ["a", "b"]}, {}, "choose one of 'a', 'b' with --engine-model"),
            ({}, {"model": "other"}, "does not serve 'other'; it serves 'tiny'"),
            ({}, {"kind": "sglang"}, "is vllm, not sglang: start with --engine vllm"),
            ({"owned_by": "somebody"}, {}, "name it with --engine"),
            ({"overrides": {"/v1/models": json_reply({}, 401)}}, {}, "--engine-key-env"),
            ({"overrides": {"/tokenize": json_reply({"tokens": [7, 8, 9]})}}, {}, "another tokenizer: .*token 0"),
            ({"overrides": {"/version": json_reply([1])}}, {}, "unknown format"),
            (
                {"overrides": {"/v1/completions": json_reply({"error": {"message": "no top_k"}}, 400)}},
                {},
                "cannot run a job: no top_k",
            ),
        ],
    )
    async def test_server_that_does_not_fit(
        self, attributes: dict[str, Any], options: dict[str, Any], message: str
    ) -> None:
        async with remote_engine() as (_, [server]):
            for name, value in attributes.items():
                setattr(server, name, value)
            engine = build_engine([server], **options)
            with pytest.raises(LoadError, match=message):
                await engine.start()

    async def test_server_that_is_busy_at_the_start_is_waited_for(self) -> None:
        async with remote_engine() as (_, [server]):
            busy = iter([json_reply({"error": "queue is full"}, 429)] * 3)
            server.probes = lambda body: next(busy, follow_grammars(body))
            engine = build_engine([server], grammar="off")
            async with asyncio.timeout(HANG_TIMEOUT_S):
                await engine.start()
            assert engine.unready_reason() is None
            await engine.close()

    async def test_context_is_the_shortest_of_the_replicas(self) -> None:
        async with remote_engine(2) as (_, servers):
            servers[0].model_fields, servers[1].model_fields = {"max_model_len": 200}, {"max_model_len": 100}
            engine = build_engine(servers)
            await engine.start()
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while any(replica.profile is None for replica in engine.replicas):
                    await asyncio.sleep(0.005)
            assert engine.info.max_model_len == 100
            await engine.close()

    async def test_engine_starts_when_the_server_comes(self) -> None:
        async with remote_engine() as (_, [server]):
            await server.kill()
            engine = build_engine([server])
            start = asyncio.create_task(engine.start())
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while "cannot be reached" not in str(engine.unready_reason()):
                    await asyncio.sleep(0.01)
                await server.start()
                await start
            assert engine.unready_reason() is None
            await engine.close()

    async def test_replica_that_does_not_fit_takes_no_jobs(self) -> None:
        async with remote_engine(2) as (_, servers):
            servers[0].overrides["/tokenize"] = json_reply({"tokens": [7]})
            engine = build_engine(servers)
            await engine.start()
            for number in range(4):
                await run_job(engine, f"job-{number}", owner=str(number))
            assert not servers[0].jobs and len(servers[1].jobs) == 4
            await engine.close()

    async def test_key_is_sent_and_not_shown(self) -> None:
        async with remote_engine(api_key="sk-secret") as (engine, [server]):
            await run_job(engine)
            assert {request.headers.get("authorization") for request in server.requests} == {"Bearer sk-secret"}
            assert "sk-secret" not in repr(engine.info) + repr(engine.stats())


def letter_id(letter: str) -> int:
    """Returns the token of one letter."""
    [token] = load_tokenizer().tokenize_str(letter)
    return int(token)
