"""Requests and replies of each kind of server, as their sources and recordings show them."""

import json
from typing import Any

import msgspec
import pytest

from antiphon.engine.protocol import Chunk, Job, Sampling, TokenLogprob
from antiphon.engine.remote.backend_apis.base import BackendApi, JobTarget, RemoteFailure, read_error_body
from antiphon.engine.remote.backend_apis.completions import CompletionsApi
from antiphon.engine.remote.backend_apis.llama_cpp import LlamaCppApi
from antiphon.engine.remote.backend_apis.sglang_generate import SglangGenerateApi
from antiphon.engine.remote.backend_apis.vllm_generate import VllmGenerateApi
from antiphon.engine.remote.faults import STREAM_BROKEN, classify_failure
from antiphon.engine.remote.job_stream import JobStream
from tests.engine.remote.remote_helpers import check_rules, merge_chunks

EOS = 9
TARGET = JobTarget(model="tiny", max_tokens=16, stop_ids=(EOS,), cache_salt="salt")
SAMPLING = Sampling(
    temperature=0.5, top_p=0.9, seed=7, logit_bias={5: -1.0}, repetition_penalty=1.1, presence_penalty=0.2
)


def sglang(ids: list[int], total: int, finish: Any = None, **meta: Any) -> dict[str, Any]:
    return {
        "text": "x",
        "output_ids": ids,
        "meta_info": {"id": "1", "finish_reason": finish, "completion_tokens": total, "cached_tokens": 2, **meta},
    }


STOP = {"type": "stop", "matched": EOS}
LLAMA_END = {"tokens": [], "stop": True, "stop_type": "eos", "timings": {"cache_n": 2}}

STREAMS: dict[str, tuple[BackendApi, list[Any]]] = {
    "vllm": (
        CompletionsApi("vllm"),
        [
            {
                "choices": [
                    {"index": 0, "text": "a", "prompt_token_ids": [1, 2], "token_ids": [5], "finish_reason": None}
                ]
            },
            {"choices": [{"index": 0, "text": "b", "token_ids": [6, 7], "finish_reason": None}]},
            {"choices": [{"index": 0, "text": "", "token_ids": [EOS], "finish_reason": "stop", "stop_reason": None}]},
            {"choices": [], "usage": {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 2}}},
        ],
    ),
    "vllm, usage in every event": (
        CompletionsApi("vllm"),
        [
            {"choices": [{"token_ids": [5, 6, 7]}], "usage": {"prompt_tokens": 2}},
            {
                "choices": [{"token_ids": [EOS], "finish_reason": "stop"}],
                "usage": {"prompt_tokens_details": {"cached_tokens": 2}},
            },
        ],
    ),
    "vllm generate": (
        VllmGenerateApi(),
        [
            {"request_id": "r", "output_mode": "tokens", "choices": [{"token_ids": [5, 6], "finish_reason": None}]},
            {"request_id": "r", "choices": [{"token_ids": [7, EOS], "finish_reason": "stop", "stop_reason": None}]},
            {"request_id": "r", "choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 2}}},
        ],
    ),
    "sglang completions": (
        CompletionsApi("sglang"),
        [
            {"choices": [{"index": 0, "text": "ab", "token_ids": [5, 6], "finish_reason": None, "matched_stop": None}]},
            {
                "choices": [
                    {"index": 0, "text": "c", "token_ids": [7, EOS], "finish_reason": "stop", "matched_stop": EOS}
                ]
            },
            {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 2}}},
        ],
    ),
    "sglang generate, cumulative": (
        SglangGenerateApi(),
        [sglang([5], 1), sglang([5, 6, 7], 3), sglang([5, 6, 7, EOS], 4, STOP)],
    ),
    "sglang generate, incremental": (
        SglangGenerateApi(),
        [sglang([5], 1), sglang([6, 7], 3), sglang([EOS], 4, STOP)],
    ),
    "llama.cpp": (
        LlamaCppApi(),
        [
            {"tokens": [0], "stop": False, "prompt_progress": {"total": 2, "cache": 1, "processed": 1}},
            {"tokens": [5], "stop": False},
            {"tokens": [6, 7], "stop": False},
            {"tokens": [EOS], "stop": False},
            LLAMA_END,
        ],
    ),
    "trtllm": (
        CompletionsApi("trtllm"),
        [
            {"choices": [{"index": 0, "text": "", "token_ids": [5, 6, 7], "finish_reason": None}]},
            {"choices": [{"index": 0, "text": "", "token_ids": [EOS], "finish_reason": "stop", "stop_reason": EOS}]},
            {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 2}}},
        ],
    ),
}


def make_job(**fields: Any) -> Job:
    return Job(id="j", tokens=(1, 2), **{"sampling": SAMPLING, **fields})


def play(api: BackendApi, data: bytes, size: int, **fields: Any) -> list[Chunk]:
    """Returns the chunks of a reply whose bytes come in pieces of this size, with a fault if the reply has a failure."""
    chunks: list[Chunk] = []
    job = make_job(**fields)
    decode = api.create_decoder(job)
    stream = JobStream(job, chunks.append, target=TARGET, vocab_size=100, decode=decode, follower=None)
    for start in range(0, len(data), size):
        if stream.on_body(data[start : start + size]):
            break
    stream.finish_reply()
    if stream.failure is not None and not stream.is_over and merge_chunks(chunks):
        stream.end_with("error", STREAM_BROKEN)
    return chunks


def encode_events(events: list[Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("name", STREAMS)
async def test_stream_in_every_chunking(name: str) -> None:
    api, events = STREAMS[name]
    data = encode_events(events)
    for size in range(1, len(data) + 1):
        chunks = play(api, data, size)
        check_rules(chunks)
        assert merge_chunks(chunks) == (5, 6, 7, EOS)
        assert (chunks[-1].finish, chunks[-1].stop_id) == ("stop", EOS)
        assert max(chunk.cached_tokens for chunk in chunks) == 2


@pytest.mark.parametrize("name", STREAMS)
async def test_stream_cut_at_every_byte_is_legal(name: str) -> None:
    """Before the first token there are no chunks but the admission; after it the last chunk is a fault or the end."""
    api, events = STREAMS[name]
    data = encode_events(events)
    for end in range(len(data)):
        chunks = play(api, data[:end], 64)
        if merge_chunks(chunks):
            check_rules(chunks)
        else:
            assert all(chunk == Chunk(cached_tokens=chunk.cached_tokens) for chunk in chunks)


@pytest.mark.parametrize("name", STREAMS)
async def test_end_without_a_reason_is_no_end(name: str) -> None:
    api, events = STREAMS[name]
    chunks = play(api, encode_events(events[: 1 if "llama" not in name else 2]), 1000)
    assert chunks[-1].fault is not None and chunks[-1].fault.retryable


async def test_log_probabilities_of_every_kind() -> None:
    sampling = msgspec.structs.replace(SAMPLING, top_logprobs=1)
    entry = TokenLogprob(EOS, -0.5, ((4, -0.25),))
    completions = {
        "tokens": ["token_id:9"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"token_id:9": -0.5, "token_id:4": -0.25}],
    }
    generate = {
        "token_id": 9,
        "logprob": -0.5,
        "top_logprobs": [{"token_id": 9, "logprob": -0.5}, {"token_id": 4, "logprob": -0.25}],
    }
    llama = {"id": 9, "logprob": -0.5, "top_logprobs": [{"id": 4, "logprob": -0.25}]}
    meta = {"output_token_logprobs": [[-0.5, 9, "x"]], "output_top_logprobs": [[[-0.25, 4, "y"]]]}
    replies: list[tuple[BackendApi, Any]] = [
        (
            CompletionsApi("vllm"),
            {"choices": [{"token_ids": [9], "finish_reason": "stop", "logprobs": completions}]},
        ),
        (
            VllmGenerateApi(),
            {"choices": [{"token_ids": [9], "finish_reason": "stop", "logprobs": {"content": [generate]}}]},
        ),
        (LlamaCppApi(), {"tokens": [9], "stop": True, "stop_type": "eos", "completion_probabilities": [llama]}),
        (SglangGenerateApi(), sglang([9], 1, STOP, **meta)),
    ]
    for api, event in replies:
        chunks = play(api, encode_events([event]), 1000, sampling=sampling)
        assert chunks[-1].logprobs == (entry,)


def body_of(api: BackendApi, grammar: str | None = None, **fields: Any) -> dict[str, Any]:
    target = msgspec.structs.replace(TARGET, grammar=grammar, banned_ids=(8,))
    body: dict[str, Any] = json.loads(api.encode_job(make_job(**fields), target))
    return body


def test_fields_of_vllm() -> None:
    body = body_of(CompletionsApi("vllm"), grammar="start: X", priority=3)
    assert body["structured_outputs"] == {"grammar": "start: X"} and body["priority"] == -3
    assert body["cache_salt"] == "salt" and body["logit_bias"] == {"5": -1.0} and body["seed"] == 7
    assert body["return_token_ids"] is True and body["skip_special_tokens"] is False
    assert (body["min_p"], body["min_tokens"], body["stop_token_ids"], body["ignore_eos"]) == (0.0, 0, [EOS], False)


def test_fields_of_vllm_generate() -> None:
    body = body_of(VllmGenerateApi(), grammar="g", sampling=Sampling(top_logprobs=2))
    assert body["token_ids"] == [1, 2] and body["reasoning_ended"] is True
    assert body["sampling_params"]["logprobs"] == 3, "the chosen token counts"
    assert body["sampling_params"]["structured_outputs"] == {"grammar": "g"}


def test_fields_of_sglang() -> None:
    body = body_of(CompletionsApi("sglang"), grammar="g", priority=3)
    assert (body["ebnf"], body["priority"], body["top_k"], body["rid"]) == ("g", 3, -1, "j")
    generate = body_of(SglangGenerateApi(), grammar="g", sampling=Sampling(top_logprobs=2, max_tokens=5))
    params = generate["sampling_params"]
    assert (params["max_new_tokens"], params["min_new_tokens"], params["ebnf"]) == (16, 0, "g")
    assert (generate["input_ids"], generate["top_logprobs_num"], generate["return_logprob"]) == ([1, 2], 2, True)


def test_fields_of_llama_cpp() -> None:
    body = body_of(LlamaCppApi(), grammar="start: X")
    assert body["grammar"].startswith("%llguidance {}\n") and body["n_predict"] == 16
    assert (body["repeat_last_n"], body["repeat_penalty"], body["n_keep"]) == (18, 1.1, 0)
    assert body["cache_prompt"] is False, "with API keys, no client finds another's prompt"
    assert body["logit_bias"] == [[5, -1.0], [8, False]], "tokens that the grammar would take for their text"
    assert body_of(LlamaCppApi("gbnf"), grammar='root ::= "x"')["grammar"] == 'root ::= "x"'


def test_fields_of_trtllm() -> None:
    body = body_of(CompletionsApi("trtllm"), grammar="g", priority=100)
    assert body["response_format"] == {"type": "ebnf", "ebnf": "g"} and body["priority"] == 1.0
    assert body["detokenize"] is False and not {"cache_salt", "return_token_ids", "skip_special_tokens"} & set(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"error": "plain"}', "plain"),
        (b'{"object": "error", "message": "flat"}', "flat"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html> Bad\n gateway", "<html> Bad gateway"),
        (b"", "HTTP status 500"),
    ],
)
def test_error_bodies(body: bytes, message: str) -> None:
    assert read_error_body(500, body) == RemoteFailure(500, message)


@pytest.mark.parametrize(
    ("status", "message", "code", "is_retryable"),
    [
        (
            400,
            "request (10000 tokens) exceeds the available context size (4096 tokens)",
            "context_length_exceeded",
            False,
        ),
        (
            400,
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
            "context_length_exceeded",
            False,
        ),
        (400, "bad grammar", "invalid_request", False),
        (403, "secret detail", "engine_unavailable", True),
        (503, "Loading model", "engine_unavailable", True),
        (504, "", "engine_unavailable", True),
    ],
)
def test_meaning_of_an_error(status: int, message: str, code: str, is_retryable: bool) -> None:
    attempt = classify_failure(RemoteFailure(status, message), "gpu1:8000")
    assert (attempt.error.code, attempt.is_retryable) == (code, is_retryable)
    assert (message in attempt.error.message) == (status == 400 or not message), (
        "only the request's own errors are shown"
    )


@pytest.mark.parametrize(
    "text",
    [
        "x" * 290 + " the key sk-engine-1234567890 is wrong",  # a cut of the text must not cut the key
        "the key sk-engine-123\u200b4567890 is wrong",
        "the key sk-engine-12\x0034567890 is wrong",
    ],
)
def test_key_in_a_text_of_the_server_is_hidden(text: str) -> None:
    attempt = classify_failure(read_error_body(400, text.encode()), "gpu1:8000", ("sk-engine-1234567890",))
    assert "the key [key] is wrong" in attempt.error.message
    assert "sk-engine" not in attempt.error.message and len(attempt.error.message) <= 500
