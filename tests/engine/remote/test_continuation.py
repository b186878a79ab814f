"""Jobs that continue after tokens of an earlier run: what servers get, and grammars over the seam."""

from typing import Any

import pytest

from antiphon.engine.protocol import EngineError, Job, Sampling
from antiphon.engine.remote.backend_apis.completions import CompletionsApi
from antiphon.engine.remote.backend_apis.llama_cpp import LlamaCppApi
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.remote_job import continue_texts, find_uncounted
from tests.engine.remote.fake_server import json_reply, play_vllm
from tests.engine.remote.hashing_model import GRAMMAR, HashingModel
from tests.engine.remote.remote_helpers import (
    EOS,
    HELLO,
    build_engine,
    follow_gbnf,
    load_model,
    load_tokenizer,
    make_job,
    merge_chunks,
    play_llama,
    remote_engine,
    run_job,
)


async def refuse_job(engine: RemoteEngine, **fields: Any) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await engine.generate(make_job(**fields), lambda _: None)
    return caught.value


class TestRequest:
    """Servers count from the end of what they get as the prompt."""

    async def test_rest_is_that_of_an_undisturbed_run(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.answer_job = HashingModel().answer
            whole = merge_chunks(await run_job(engine, max_tokens=20))
            for cut in range(21):
                rest = await run_job(engine, max_tokens=20, generated=whole[:cut])
                assert (merge_chunks(rest), rest[-1].finish) == (whole[cut:], "length")
            assert len(server.jobs) == 21, "nothing is asked for a job that has all its tokens"

    async def test_limits_are_reduced(self) -> None:
        async with remote_engine(default=play_vllm(EOS)) as (engine, [server]):
            await run_job(engine, max_tokens=20, min_tokens=5, seed=7, generated=(50, 51, 52))
            body = server.jobs[0].body
            assert body["prompt"] == [*HELLO, 50, 51, 52]
            assert (body["max_tokens"], body["min_tokens"]) == (17, 2)
            assert body["seed"] == 7 ^ 3, "its random numbers do not come again"
            await run_job(engine, min_tokens=2, generated=(50, 51, 52))
            body = server.jobs[1].body
            assert (body["max_tokens"], body["min_tokens"]) == (4096 - len(HELLO) - 3, 0)

    async def test_counts_are_those_of_the_prompt(self) -> None:
        async with remote_engine(default=play_vllm(50, EOS, cached=5)) as (engine, _):
            chunks = await run_job(engine, generated=(60, 61, 62))
            assert max(chunk.cached_tokens for chunk in chunks) == len(HELLO)
            stats = engine.stats()
            assert (stats.prompt_tokens, stats.generated_tokens, stats.prefix_hit_tokens) == (len(HELLO), 2, 3)

    async def test_log_probabilities_of_the_prompt_are_not_reported_again(self) -> None:
        async with remote_engine(default=play_vllm(50, EOS)) as (engine, [server]):
            await run_job(engine, generated=(60,), prompt_logprobs=1)
            assert "prompt_logprobs" not in server.jobs[0].body and server.jobs[0].body["stream"]

    @pytest.mark.parametrize(
        ("generated", "code"),
        [((50,) * 4094, "context_length_exceeded"), ((-1,), "invalid_request"), ((1027,), "invalid_request")],
    )
    async def test_tokens_that_no_run_has_generated(self, generated: tuple[int, ...], code: str) -> None:
        async with remote_engine() as (engine, [server]):
            assert (await refuse_job(engine, generated=generated)).code == code
            assert not server.jobs

    async def test_full_context_is_the_end(self) -> None:
        async with remote_engine() as (engine, [server]):
            chunks = await run_job(engine, generated=(50,) * (4096 - len(HELLO)))
            assert chunks[-1].finish == "length" and not server.jobs

    async def test_remote_engines_promise_no_equality(self) -> None:
        async with remote_engine() as (engine, _):
            assert not engine.info.capabilities.continues_exactly

    async def test_log_names_what_a_server_counts_anew(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", logger="antiphon.engine.remote.replica"):
            async with remote_engine():
                pass
        assert "goes on after a loss: presence_penalty, frequency_penalty, seed" in caplog.text

    async def test_strict_refuses_what_a_server_counts_anew(self) -> None:
        async with remote_engine(continuation="strict") as (engine, [server]):
            error = await refuse_job(engine, generated=(50,), seed=1)
            assert error.code == "engine_unavailable" and "seed" in error.message and not server.jobs
            assert merge_chunks(await run_job(engine, generated=(50,), temperature=0.0, seed=1)) == (50, 51, EOS)
            assert merge_chunks(await run_job(engine, generated=(), seed=1)) == (50, 51, EOS)

    def test_fields_that_servers_count_anew(self) -> None:
        job = Job(id="j", tokens=HELLO, sampling=Sampling(seed=1, presence_penalty=0.1, frequency_penalty=-0.1))
        assert find_uncounted(job, CompletionsApi("vllm")) == ["presence_penalty", "frequency_penalty", "seed"]
        assert find_uncounted(job, LlamaCppApi()) == ["seed"], "its penalties count the prompt"
        plain = Job(id="j", tokens=HELLO, sampling=Sampling(seed=1, temperature=0.0, repetition_penalty=1.5))
        assert find_uncounted(plain, CompletionsApi("vllm")) == []


class TestTexts:
    """An engine that takes pictures beside text gets the tokens as text."""

    def job(self) -> Job:
        return make_job(texts=("Look: ", "\n"))

    def test_tokens_become_text(self) -> None:
        tokens = load_tokenizer().tokenize_str("A cat. ")
        assert continue_texts(self.job(), tokens, load_model()[0].vocabulary).texts == ("Look: ", "\nA cat. ")

    def test_tokens_that_the_text_would_not_give_are_refused(self) -> None:
        [a], [b] = load_tokenizer().tokenize_str("a"), load_tokenizer().tokenize_str("b")
        assert len(load_tokenizer().tokenize_str("ab")) == 1
        with pytest.raises(EngineError, match="cannot go on here") as caught:
            continue_texts(self.job(), [a, b], load_model()[0].vocabulary)
        assert caught.value.code == "media_unavailable"
        with pytest.raises(EngineError):
            continue_texts(self.job(), [a], None)


class TestGrammars:
    """No server can begin in the middle of a grammar, so that the output is cut where it leaves it."""

    async def test_rest_is_that_of_an_undisturbed_run(self) -> None:
        model = HashingModel(GRAMMAR)
        async with remote_engine() as (engine, [server]):
            server.answer_job = model.answer
            whole = merge_chunks(await run_job(engine, grammar=GRAMMAR))
            assert model.num_masked == 0 and whole[-1] == EOS
            for cut in range(1, len(whole)):
                rest = await run_job(engine, grammar=GRAMMAR, generated=whole[:cut])
                assert merge_chunks(rest) == whole[cut:]
            assert model.num_masked > 0
            assert engine.info.capabilities.grammar and not engine.replicas[0].stats.grammar_departures

    async def test_limit_holds_over_all_requests(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.answer_job = HashingModel(GRAMMAR).answer
            whole = merge_chunks(await run_job(engine, grammar=GRAMMAR))
            for limit in range(2, len(whole)):
                rest = await run_job(engine, grammar=GRAMMAR, generated=whole[:1], max_tokens=limit)
                assert (merge_chunks(rest), rest[-1].finish) == (whole[1:limit], "length")

    async def test_token_outside_the_grammar_is_replaced(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(*ids("bx")), play_vllm(*ids("c")), play_vllm(EOS)]
            chunks = await run_job(engine, grammar='start: "a" "b"? ("c" | "d")', generated=ids("a"), top_logprobs=None)
            assert merge_chunks(chunks) == (*ids("bc"), EOS)
            first, second, third = [job.body for job in server.jobs]
            assert "structured_outputs" not in first and "structured_outputs" not in third
            assert second["max_tokens"] == 1 and second["prompt"] == [*HELLO, *ids("ab")]
            [low, high] = sorted(ids("cd"))
            assert second["structured_outputs"] == {"grammar": f"start: <[{low}-{high}]>"}
            assert [job.body["prompt"] for job in server.jobs][2] == [*HELLO, *ids("abc")]

    async def test_end_is_among_what_the_grammar_allows(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(*ids("x")), play_vllm(EOS)]
            chunks = await run_job(engine, grammar='start: "a" "c"?', generated=ids("a"))
            assert (merge_chunks(chunks), chunks[-1].stop_id) == ((EOS,), EOS)
            assert server.jobs[1].body["structured_outputs"] == {"grammar": f"start: <[{EOS},{ids('c')[0]}]>"}

    @pytest.mark.parametrize("tokens", [(EOS,), ()])
    async def test_end_before_the_end_of_the_grammar_is_replaced(self, tokens: tuple[int, ...]) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(*ids("b"), *tokens), play_vllm(*ids("c")), play_vllm(EOS)]
            chunks = await run_job(engine, grammar='start: "a" "b" "c"', generated=ids("a"))
            assert merge_chunks(chunks) == (*ids("bc"), EOS)

    async def test_server_that_ignores_a_mask_ends_the_job(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(*ids("x")), play_vllm(*ids("x"))]
            chunks = await run_job(engine, grammar='start: "a" "c"', generated=ids("a"))
            assert chunks[-1].fault is not None and "grammar" in chunks[-1].fault.message
            assert engine.replicas[0].stats.grammar_departures == 1

    async def test_least_number_of_tokens_is_not_asked_of_a_mask(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(*ids("bx")), play_vllm(EOS)]
            chunks = await run_job(engine, grammar='start: "a" "b"', generated=ids("a"), min_tokens=50, max_tokens=60)
            assert (merge_chunks(chunks), chunks[-1].finish) == ((*ids("b"), EOS), "stop")
            first, second = [job.body for job in server.jobs]
            assert (first["min_tokens"], first["max_tokens"]) == (49, 59)
            assert (second["min_tokens"], second["max_tokens"]) == (0, 1)
            assert second["structured_outputs"] == {"grammar": f"start: <[{EOS}]>"}

    async def test_end_is_not_allowed_before_the_least_number_of_tokens(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(*ids("x")), play_vllm(*ids("c")), play_vllm(EOS)]
            grammar = 'start: "a" "c"? "d"?'
            chunks = await run_job(engine, grammar=grammar, generated=ids("a"), min_tokens=2, max_tokens=9)
            assert merge_chunks(chunks) == (*ids("c"), EOS)
            [low, high] = sorted(ids("cd"))
            assert server.jobs[1].body["structured_outputs"] == {"grammar": f"start: <[{low}-{high}]>"}

    @pytest.mark.parametrize("after", ["x", "xyz"])
    async def test_complete_grammar_ends_a_reply_that_the_server_must_continue_with(self, after: str) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(*ids(f"ab{after}"))]
            chunks = await run_job(engine, grammar='start: "a" "b"', min_tokens=50)
            assert (merge_chunks(chunks), chunks[-1].finish) == (ids("ab"), "stop")
            assert not engine.replicas[0].stats.grammar_departures

    async def test_the_end_of_a_grammar_is_not_ignored(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(*ids("ab"), EOS)]
            chunks = await run_job(engine, grammar='start: "a" "b"', ignore_eos=True)
            assert (merge_chunks(chunks), chunks[-1].finish) == ((*ids("ab"), EOS), "stop")
            body = server.jobs[0].body
            assert body["ignore_eos"] is False and EOS in body["stop_token_ids"]

    async def test_stop_token_that_the_grammar_needs_ends_the_job(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(*ids("x")), play_vllm(*ids("b"))]
            chunks = await run_job(engine, grammar='start: "a" "b" "c"', generated=ids("a"), stop_ids=ids("b"))
            assert (merge_chunks(chunks), chunks[-1].stop_id) == (ids("b"), ids("b")[0])
            assert server.jobs[1].body["structured_outputs"] == {"grammar": f"start: <[{ids('b')[0]}]>"}

    async def test_least_number_of_tokens_is_at_most_the_room(self) -> None:
        async with remote_engine() as (engine, [server]):
            server.replies = [play_vllm(50, EOS)]
            await run_job(engine, min_tokens=10**6)
            body = server.jobs[0].body
            assert body["min_tokens"] == body["max_tokens"] < 10**6

    async def test_generated_tokens_outside_the_grammar_are_refused(self) -> None:
        async with remote_engine() as (engine, [server]):
            error = await refuse_job(engine, grammar='start: "a" "c"', generated=ids("x"))
            assert "does not allow" in error.message and not server.jobs

    async def test_llama_cpp_without_llguidance_gets_a_bias(self) -> None:
        async with remote_engine() as (_, [server]):
            server.owned_by, server.text_field, server.probes = "llamacpp", "content", follow_gbnf
            engine = build_engine([server])
            await engine.start()
            server.replies = [play_llama(*ids("x")), play_llama(*ids("c"), stop_type="limit"), play_llama(EOS)]
            chunks = await run_job(engine, grammar='start: "a" ("c" | "d")', generated=ids("a"))
            assert merge_chunks(chunks) == (*ids("c"), EOS)
            body = server.jobs[1].body
            assert "grammar" not in body and body["n_predict"] == 1
            assert set(range(1027)) - {token for token, bias in body["logit_bias"] if bias is False} == set(ids("cd"))
            await engine.close()

    async def test_refused_mask_is_no_error_of_the_client(self) -> None:
        async with remote_engine() as (engine, [server]):
            refusal = json_reply({"error": {"message": "grammar too large"}}, 400)
            server.replies = [play_vllm(*ids("bx")), refusal]
            chunks = await run_job(engine, grammar='start: "a" "b" "c"', generated=ids("a"))
            assert merge_chunks(chunks) == ids("b") and chunks[-1].fault is not None


def ids(text: str) -> tuple[int, ...]:
    """Returns the tokens of the single letters of a text."""
    return tuple(token for letter in text for token in load_tokenizer().tokenize_str(letter))
