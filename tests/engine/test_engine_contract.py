"""The checks of `engine_contract.py` on every engine of this project."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine, parse_script
from tests.engine.engine_contract import CHECKS, EngineCase
from tests.engine.remote.fake_server import Reply, sse, vllm_tokens, vllm_usage
from tests.engine.remote.remote_helpers import follow_grammars, remote_engine
from tests.engine.threaded_engine import build_threaded_engine
from tests.engine.tiny_models import build_tiny_core

PROMPT = tuple(range(3, 40))
CONTEXT = 4096


@asynccontextmanager
async def scripted_case() -> AsyncIterator[EngineCase]:
    text = "".join(chr(0x100 + n % 200) for n in range(3000))
    replies = parse_script({"reply": [{"name": "any", "output": list(text), "cached_tokens": 300}]})
    info = EngineInfo(max_model_len=CONTEXT, vocab_size=1000)
    engine = ScriptedEngine(replies, encode=lambda piece: [ord(letter) for letter in piece], info=info, delay=0.002)
    await engine.start()
    yield EngineCase(engine, PROMPT, follows_bias=False)
    await engine.close()


@asynccontextmanager
async def torch_case() -> AsyncIterator[EngineCase]:
    engine = build_threaded_engine(partial(build_tiny_core, max_model_len=CONTEXT))
    await engine.start()
    yield EngineCase(engine, PROMPT)
    await engine.close()


@asynccontextmanager
async def remote_case() -> AsyncIterator[EngineCase]:
    """A remote engine over a fake vLLM that generates the same tokens for every job, as its fields demand."""
    async with remote_engine(probes=answer_like_vllm) as (engine, [server]):
        server.answer_job = answer_like_vllm
        yield EngineCase(engine, PROMPT)


def answer_like_vllm(body: dict[str, Any]) -> Reply:
    """Returns the reply that vLLM would give for these fields."""
    if body.get("structured_outputs"):
        reply = follow_grammars(body)
        assert reply is not None
        return reply
    bias = {int(token): value for token, value in body.get("logit_bias", {}).items()}
    forced = max(bias, key=lambda token: bias[token]) if bias else None
    count, num_top = min(body["max_tokens"], 2000), body.get("logprobs")
    events: list[Any] = []
    for number in range(count):
        token = 50 + number % 40 if forced is None else forced
        is_stop = token in body["stop_token_ids"]
        finish = "stop" if is_stop else "length" if number == count - 1 else None
        logprobs = None
        if num_top is not None:
            top = {f"token_id:{token}": -0.1, **{f"token_id:{90 + n}": -1.0 - n for n in range(num_top)}}
            logprobs = {"tokens": [f"token_id:{token}"], "token_logprobs": [-0.1], "top_logprobs": [top]}
        events.append(vllm_tokens(token, finish=finish, logprobs=logprobs))
        if finish is not None:
            break
    prompt = json.dumps(body["prompt"])
    cached = 256 if prompt in _seen else 0
    _seen.add(prompt)
    return Reply(sse(*events, vllm_usage(cached)), part_delay_s=0.002 if count > 100 else 0.0)


_seen: set[str] = set()
CASES: dict[str, Callable[[], Any]] = {"scripted": scripted_case, "torch": torch_case, "remote": remote_case}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_engine_keeps_the_contract(name: str, check: Callable[[EngineCase], Awaitable[None]]) -> None:
    async with CASES[name]() as case:
        await check(case)
