"""The reading of one reply: limits at their value and one after, values that no working engine sends, slices."""

import json
from typing import Any

import pytest

from antiphon.engine.protocol import Chunk, Job, Sampling
from antiphon.engine.remote import job_stream
from antiphon.engine.remote.backend_apis.base import JobTarget
from antiphon.engine.remote.backend_apis.completions import CompletionsApi
from antiphon.engine.remote.job_stream import (
    BROKEN_REPLY,
    EVENTS_PER_PASS,
    TOKENS_PER_PASS,
    JobStream,
)
from antiphon.engine.remote.transport.sse import MAX_EVENT_BYTES
from tests.engine.remote.fake_server import sse, vllm_tokens, vllm_usage
from tests.engine.remote.remote_helpers import check_rules, merge_chunks

EOS = 9
VOCAB_SIZE = 100
PROMPT = (1, 2, 3)
SURFACE = CompletionsApi("vllm")


class Reading:
    """A stream and the chunks that it passed on."""

    def __init__(self, max_tokens: int = 1000, **fields: Any) -> None:
        sampling = Sampling(**{name: fields.pop(name) for name in list(fields) if name == "top_logprobs"})
        job = Job(id="j", tokens=PROMPT, sampling=sampling, **fields)
        self.chunks: list[Chunk] = []
        self.stream = JobStream(
            job,
            self.chunks.append,
            target=JobTarget(model="tiny", max_tokens=max_tokens, stop_ids=(EOS,)),
            vocab_size=VOCAB_SIZE,
            decode=SURFACE.create_decoder(job),
            follower=None,
        )

    def read(self, *events: Any) -> bool:
        """Reads events in one piece. Returns true if the rest is not needed."""
        return self.stream.on_body(b"".join(sse(*events, end=False)))

    def finish(self) -> list[Chunk]:
        self.stream.finish_reply()
        return self.chunks

    @property
    def tokens(self) -> tuple[int, ...]:
        return merge_chunks(self.chunks)

    @property
    def is_ended(self) -> bool:
        """True if the last chunk was passed on, or waits for the count of cached tokens."""
        return self.stream.is_over or self.stream.finishing.done()


class TestEnd:
    """The job ends at a stop token and at the limit, whatever the server does."""

    @pytest.mark.parametrize(
        ("tokens", "limit", "is_ended"), [((5, 6), 3, False), ((5, 6), 2, True), ((5, 6, 7), 2, True), ((5,), 1, True)]
    )
    async def test_limit_of_tokens(self, tokens: tuple[int, ...], limit: int, is_ended: bool) -> None:
        reading = Reading(limit)
        assert not reading.read(vllm_tokens(*tokens)), "the count of cached tokens may follow"
        assert reading.is_ended == is_ended
        if is_ended:
            assert reading.finish()[-1].finish == "length" and reading.tokens == tokens[:limit]

    async def test_limit_reached_by_several_events(self) -> None:
        reading = Reading(2)
        reading.read(vllm_tokens(5))
        assert not reading.is_ended
        reading.read(vllm_tokens(6))
        assert reading.is_ended and reading.finish()[-1].finish == "length"

    async def test_stop_token_at_the_limit_is_a_stop(self) -> None:
        reading = Reading(2)
        reading.read(vllm_tokens(5, EOS))
        last = reading.finish()[-1]
        assert (last.finish, last.stop_id) == ("stop", EOS)

    async def test_stop_token_behind_the_limit_is_not_reached(self) -> None:
        reading = Reading(1)
        reading.read(vllm_tokens(5, EOS))
        last = reading.finish()[-1]
        assert (last.finish, last.stop_id, reading.tokens) == ("length", None, (5,))

    async def test_end_of_the_server_without_tokens(self) -> None:
        reading = Reading()
        reading.read(vllm_tokens(5), vllm_tokens(finish="stop"), vllm_usage())
        last = reading.finish()[-1]
        assert (last.finish, last.stop_id, last.tokens) == ("stop", None, ())

    async def test_tokens_after_the_end_are_ignored(self) -> None:
        reading = Reading()
        reading.read(vllm_tokens(5, EOS), vllm_tokens(6), vllm_usage(2))
        assert reading.finish()[-1].cached_tokens == 2 and reading.tokens == (5, EOS)

    async def test_failure_after_the_end_is_ignored(self) -> None:
        reading = Reading()
        assert reading.read(vllm_tokens(5, EOS), {"error": {"message": "late", "code": 500}})
        check_rules(reading.chunks)
        assert reading.chunks[-1].finish == "stop"

    @pytest.mark.parametrize("num_tokens", [0, 1])
    async def test_failure_is_kept_and_ends_no_job(self, num_tokens: int) -> None:
        reading = Reading()
        reading.read(*[vllm_tokens(5)] * num_tokens)
        assert reading.read({"error": {"message": "broken", "code": 500}})
        assert reading.stream.failure is not None
        assert bool(reading.chunks) == bool(num_tokens) and not reading.stream.is_over
        assert reading.read(vllm_tokens(6)), "nothing more is read"
        assert 6 not in reading.tokens


class TestUnbelievableValues:
    """Values that no working engine sends."""

    @pytest.mark.parametrize(("count", "cached"), [(-1, 0), (0, 0), (3, 3), (4, 0), (10**30, 0)])
    async def test_count_of_cached_tokens(self, count: int, cached: int) -> None:
        reading = Reading()
        reading.read(vllm_tokens(EOS, finish="stop"), vllm_usage(count))
        assert reading.finish()[-1].cached_tokens == cached

    @pytest.mark.parametrize(
        ("token", "is_valid"), [(-1, False), (0, True), (VOCAB_SIZE - 1, True), (VOCAB_SIZE, False), (10**30, False)]
    )
    async def test_token_outside_the_vocabulary(self, token: int, is_valid: bool) -> None:
        for tokens in ((token,), (5, token), (token, 5)):
            reading = Reading()
            assert reading.read(vllm_tokens(*tokens)) is not is_valid
            assert reading.stream.failure == (None if is_valid else BROKEN_REPLY)

    @pytest.mark.parametrize(
        ("tokens", "top", "is_valid"),
        [
            (["token_id:5"], {"token_id:5": -1.0, "token_id:99": -2.0}, True),
            (["token_id:5"], {"token_id:100": -1.0}, False),
            (["token_id:5"], {"token_id:-1": -1.0}, False),
            (["token_id:5"], {f"token_id:1{'0' * 30}": -1.0}, False),
            (["token_id:5"], {f"token_id:1{'0' * 5000}": -1.0}, False),
            (["token_id:6"], {}, False),
            (["token_id:5", "token_id:6"], {}, False),
            ([], {}, False),
            (["x"], {}, False),
        ],
    )
    async def test_log_probabilities(self, tokens: list[str], top: dict[str, float], is_valid: bool) -> None:
        logprobs = {"tokens": tokens, "token_logprobs": [-1.0] * len(tokens), "top_logprobs": [top] * len(tokens)}
        reading = Reading(top_logprobs=2)
        assert reading.read(vllm_tokens(5, logprobs=logprobs)) is not is_valid

    async def test_prompt_log_probabilities_outside_the_vocabulary(self) -> None:
        for candidate, is_valid in ((VOCAB_SIZE - 1, True), (VOCAB_SIZE, False)):
            entries = [None, {"2": {"logprob": -1.0}, str(candidate): {"logprob": -0.5}}, {"3": {"logprob": -0.1}}]
            reading = Reading(prompt_logprobs=2)
            event = vllm_tokens(EOS, finish="stop", prompt_logprobs=entries)
            assert reading.stream.on_payload(json.dumps(event).encode()) is not is_valid

    @pytest.mark.parametrize("text", ['{"x": ' + "[" * 100_000, '{"error": ' * 100_000, '{"choices": [1e999]}'])
    @pytest.mark.parametrize("num_tokens", [0, 1])
    async def test_json_that_cannot_be_decoded(self, text: str, num_tokens: int) -> None:
        reading = Reading()
        reading.read(*[vllm_tokens(5)] * num_tokens)
        assert reading.stream.on_body(f"data: {text}\n\n".encode())
        assert reading.stream.failure == BROKEN_REPLY and len(reading.tokens) == num_tokens


class TestSizes:
    """How much a server may send without a token."""

    @pytest.mark.parametrize("event", [b": comment", b"data: {}", b"data: [DONE]", b""])
    async def test_events_without_tokens(self, event: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        limit = 100_000
        monkeypatch.setattr(job_stream, "MAX_IDLE_BYTES", limit)
        reading = Reading()
        reading.read(vllm_tokens(5))
        piece = (event + b"\n\n") * 1000
        for _ in range(limit // len(piece)):
            assert not reading.stream.on_body(piece)
            while reading.stream.has_backlog:
                reading.stream.process_backlog()
        assert reading.stream.on_body(piece) and reading.stream.failure == BROKEN_REPLY

    async def test_count_of_idle_bytes_ends_at_its_limit_and_begins_anew_with_a_token(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_stream, "MAX_IDLE_BYTES", 500)
        for extra in (0, 1):
            reading = Reading()
            reading.read(vllm_tokens(5))
            for _ in range(2):
                assert not reading.stream.on_body(b":\n\n" * 100)
                reading.read(vllm_tokens(5))
            data = b": " + b"x" * (496 + extra) + b"\n\n"
            assert len(data) == 500 + extra
            assert reading.stream.on_body(data) is (extra == 1)

    async def test_event_that_is_not_complete_is_not_idle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(job_stream, "MAX_IDLE_BYTES", 500)
        reading = Reading()
        assert not reading.stream.on_body(b"data: " + b" " * 1000)
        assert not reading.stream.on_body(sse(vllm_tokens(5))[0].removeprefix(b"data:"))
        assert reading.tokens == (5,)

    async def test_first_event_may_repeat_the_prompt(self) -> None:
        limit = MAX_EVENT_BYTES + job_stream.BYTES_PER_PROMPT_TOKEN * len(PROMPT)
        for size, is_broken in ((limit, False), (limit + 1, True)):
            reading = Reading()
            reading.stream.on_body(b": a comment before it\n\n")
            assert reading.stream.on_body(b"x" * size) is is_broken

    async def test_later_event_may_not(self) -> None:
        for size, is_broken in ((MAX_EVENT_BYTES, False), (MAX_EVENT_BYTES + 1, True)):
            reading = Reading()
            reading.read(vllm_tokens(5))
            assert reading.stream.on_body(b"x" * size) is is_broken
            assert (reading.stream.failure is not None) is is_broken


class TestPasses:
    """Much output in one piece is processed in several passes of the event loop."""

    @pytest.mark.parametrize("extra", [0, 1])
    async def test_events_of_a_pass(self, extra: int) -> None:
        reading = Reading()
        reading.read(*[vllm_tokens(5)] * (EVENTS_PER_PASS + extra))
        assert reading.stream.num_tokens == EVENTS_PER_PASS and reading.stream.has_backlog == bool(extra)
        reading.stream.process_backlog()
        assert reading.stream.num_tokens == EVENTS_PER_PASS + extra and not reading.stream.has_backlog

    @pytest.mark.parametrize("extra", [0, 1])
    async def test_tokens_of_a_pass(self, extra: int) -> None:
        reading = Reading()
        reading.read(vllm_tokens(*[5] * (TOKENS_PER_PASS + extra)))
        assert reading.stream.num_tokens == TOKENS_PER_PASS and reading.stream.has_backlog == bool(extra)

    async def test_tokens_of_a_pass_over_several_events(self) -> None:
        reading = Reading()
        reading.read(*[vllm_tokens(*[5] * (TOKENS_PER_PASS // 2))] * 3)
        assert reading.stream.num_tokens == TOKENS_PER_PASS and reading.stream.has_backlog

    async def test_end_of_a_large_event_comes_with_its_last_token(self) -> None:
        tokens = [n % 8 + 10 for n in range(2 * TOKENS_PER_PASS + 50)]
        reading = Reading()
        reading.read(vllm_tokens(*tokens, EOS, finish="stop"))
        assert not reading.is_ended
        chunks = reading.finish()
        check_rules(chunks)
        assert reading.tokens == (*tokens, EOS) and chunks[-1].stop_id == EOS

    async def test_large_event_is_cut_at_its_stop_token(self) -> None:
        reading = Reading()
        reading.read(vllm_tokens(*[5] * TOKENS_PER_PASS, EOS, *[6] * TOKENS_PER_PASS, finish="length"), vllm_usage(2))
        chunks = reading.finish()
        check_rules(chunks)
        assert reading.tokens == (*[5] * TOKENS_PER_PASS, EOS)
        assert (chunks[-1].finish, chunks[-1].cached_tokens) == ("stop", 2)

    async def test_log_probabilities_of_a_large_event(self) -> None:
        count = TOKENS_PER_PASS + 1
        logprobs = {"tokens": ["token_id:5"] * count, "token_logprobs": [-1.0] * count}
        entries = [None, {"2": {"logprob": -1.0}}, {"3": {"logprob": -0.1}}]
        reading = Reading(top_logprobs=0, prompt_logprobs=1)
        event = vllm_tokens(*[5] * count, finish="length", logprobs=logprobs, prompt_logprobs=entries)
        reading.stream.on_payload(json.dumps(event).encode())
        chunks = reading.finish()
        assert [len(chunk.logprobs) for chunk in chunks] == [len(chunk.tokens) for chunk in chunks]
        assert [bool(chunk.prompt_logprobs) for chunk in chunks] == [False, True, False]

    async def test_backlog_ends_with_a_failure(self) -> None:
        reading = Reading()
        events = [vllm_tokens(5)] * EVENTS_PER_PASS + [vllm_tokens(VOCAB_SIZE), vllm_tokens(6)]
        assert not reading.read(*events)
        assert reading.stream.process_backlog() and not reading.stream.has_backlog
        assert reading.tokens == (5,) * EVENTS_PER_PASS and reading.stream.failure == BROKEN_REPLY

    async def test_outputs_are_counted(self) -> None:
        reading = Reading()
        reading.stream.on_body(b": ping\n\ndata: {}\n\ndata: [DONE]\n\n")
        assert reading.stream.num_outputs == 0
        reading.read(vllm_tokens(5), vllm_tokens(EOS, finish="stop"))
        assert reading.stream.num_outputs == 2
