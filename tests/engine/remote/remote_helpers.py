"""A remote engine over fake servers, with the tokenizer of the embedded model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from random import Random
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.protocol import Chunk, EngineInfo, Job, Sampling
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.model_files import describe_model
from antiphon.engine.remote.options import RemoteModel, RemoteOptions, RemoteTimeouts
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from antiphon.harmony.grammar import build_probe_grammar, relax_whitespace
from tests.engine.remote.fake_server import (
    FakeServer,
    Reply,
    fake_server,
    json_reply,
    play_vllm,
    sse,
    vllm_tokens,
    vllm_usage,
)
from tests.engine.remote.grammars.gbnf_text import Gbnf
from tests.progress import HANG_TIMEOUT_S

EOS = 2
"""End token of the embedded model."""
FAST = RemoteTimeouts(
    final_count_grace_s=0.02,
    health_interval_s=0.05,
    health_timeout_s=1.0,
    min_reconnect_delay_s=0.02,
    max_reconnect_delay_s=0.1,
    handshake_timeout_s=5.0,
)
HELLO = (40, 41, 42)
"""Token ids of a prompt."""


@cache
def load_model() -> tuple[RemoteModel, EngineInfo]:
    return describe_model(
        MODEL_DIR, max_model_len=None, grammar_probe=build_probe_grammar, relax_grammar=relax_whitespace, stop_ids=()
    )


@cache
def load_tokenizer() -> LLTokenizer:
    return LLTokenizer(str(MODEL_DIR / "tokenizer.json"), eos_token=EOS)


def encode(text: str) -> list[int]:
    """Encodes like the model's own tokenizer."""
    check = load_model()[0].tokenizer_check
    return list(check.ids) if text == check.text else [1]


def decode(tokens: list[int]) -> str:
    """Decodes like the model's own tokenizer."""
    vocabulary = load_model()[0].vocabulary
    assert vocabulary is not None
    return vocabulary.decode(tokens)


def sample_grammar(grammar: str, max_tokens: int = 40, seed: int = 0) -> list[int]:
    """Returns random tokens that the grammar allows, with the end token if it ends."""
    matcher, random = LLMatcher(load_tokenizer(), grammar, log_level=0), np.random.default_rng(seed)
    assert not matcher.is_error(), matcher.get_error()
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        if matcher.is_accepting() and (matcher.is_stopped() or random.random() < 0.5):
            return [*tokens, EOS]
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        bits[EOS] = 0
        tokens.append(int(random.choice(np.flatnonzero(bits))))
        assert matcher.consume_token(tokens[-1])
    return tokens


def follow_grammars(body: dict[str, Any]) -> Reply | None:
    """Answers probes as a server does that follows grammars, reports log-probabilities and counts cached tokens."""
    num_top = body.get("logprobs")
    if num_top is not None:
        names = {"tokens": ["token_id:50"], "token_logprobs": [-1.0], "top_logprobs": [{"token_id:50": -1.0}]}
        return Reply(sse(vllm_tokens(50, finish="length", logprobs=names), vllm_usage()))
    grammar = body.get("structured_outputs", {}).get("grammar")
    if grammar is None:
        return None
    tokens = sample_grammar(grammar, body["max_tokens"])
    return play_vllm(*tokens, finish="stop" if tokens[-1] == EOS else "length")


def drop_grammars(body: dict[str, Any]) -> Reply | None:
    """Answers probes as a server does that ignores grammars without an error."""
    return None if "structured_outputs" in body else follow_grammars(body)


def play_llama(*tokens: int, stop_type: str = "eos") -> Reply:
    """Returns a whole reply of llama.cpp."""
    events = [{"tokens": [token], "stop": False} for token in tokens]
    return Reply(
        sse(*events, {"tokens": [], "stop": True, "stop_type": stop_type, "timings": {"cache_n": 0}}, end=False)
    )


def sample_gbnf(grammar: str, max_tokens: int, seed: int = 0) -> list[int]:
    """Returns random tokens that a grammar in GBNF allows, with the end token if it ends."""
    tokens, text = list[int](), ""
    for part in [*Gbnf(grammar).sample(Random(seed)), None]:
        if isinstance(part, str):
            text += part
            continue
        tokens += [*load_tokenizer().tokenize_str(text), *([] if part is None else [part])]
        text = ""
    return [*tokens, EOS] if len(tokens) < max_tokens else tokens[:max_tokens]


def follow_gbnf(body: dict[str, Any]) -> Reply:
    """Answers like a llama.cpp that was built without llguidance."""
    grammar = body.get("grammar")
    if grammar is None:
        return play_llama(50, EOS) if "n_probs" not in body else json_reply({"error": {"message": "none"}}, 400)
    if grammar.startswith("%llguidance"):
        return json_reply({"error": {"code": 400, "message": f"Failed to parse grammar {grammar}"}}, 400)
    tokens = sample_gbnf(grammar, body["n_predict"])
    return play_llama(*tokens, stop_type="eos" if tokens[-1] == EOS else "limit")


@asynccontextmanager
async def remote_engine(
    num_servers: int = 1,
    *,
    probes: Any = follow_grammars,
    default: Reply | None = None,
    timeouts: RemoteTimeouts = FAST,
    api_key: str | None = None,
    **options: Any,
) -> AsyncIterator[tuple[RemoteEngine, list[FakeServer]]]:
    """Yields a started engine and its servers."""
    async with AsyncExitStack() as stack:
        reply = default or play_vllm(50, 51, EOS)
        servers = [await stack.enter_async_context(fake_server(encode, reply, probes)) for _ in range(num_servers)]
        for server in servers:
            server.decode = decode
        engine = build_engine(servers, timeouts=timeouts, api_key=api_key, **options)
        await engine.start()
        try:
            async with asyncio.timeout(HANG_TIMEOUT_S):  # the engine starts with the first of them
                while any(replica.profile is None for replica in engine.replicas):
                    await asyncio.sleep(0.005)
            yield engine, servers
        finally:
            await engine.close()


def build_engine(
    servers: list[FakeServer], *, timeouts: RemoteTimeouts = FAST, api_key: str | None = None, **options: Any
) -> RemoteEngine:
    """Returns an engine over these servers, not started."""
    model, info = load_model()
    endpoints = tuple(RemoteEndpoint(host="127.0.0.1", port=server.port) for server in servers)
    return RemoteEngine(RemoteOptions(endpoints=endpoints, **options), model, info, api_key=api_key, timeouts=timeouts)


def make_job(job_id: str = "job", **fields: Any) -> Job:
    """Returns a job; `sampling` fields may be given by name."""
    names = set(Sampling.__struct_fields__)
    sampling = {name: fields.pop(name) for name in list(fields) if name in names}
    return Job(id=job_id, sampling=Sampling(**sampling), **{"tokens": HELLO, **fields})


def merge_chunks(chunks: list[Chunk]) -> tuple[int, ...]:
    """Returns the tokens of all chunks."""
    return tuple(token for chunk in chunks for token in chunk.tokens)


def check_rules(chunks: list[Chunk]) -> None:
    """Checks the rules of `engine.protocol` that hold for the chunks of any job."""
    assert chunks[0].tokens == () and chunks[0].finish is None, "the first chunk marks the admission"
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    last = chunks[-1]
    assert (last.finish == "error") == (last.fault is not None)
    if last.finish == "stop" and last.stop_id is not None:
        assert last.tokens[-1] == last.stop_id


async def run_job(engine: RemoteEngine, job_id: str = "job", **fields: Any) -> list[Chunk]:
    chunks: list[Chunk] = []
    await engine.generate(make_job(job_id, **fields), chunks.append)
    check_rules(chunks)
    return chunks
