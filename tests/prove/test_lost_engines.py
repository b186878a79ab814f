"""Real servers that are killed in the middle of the output: jobs continue after their restart."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.engine.protocol import Chunk, Job
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.options import RemoteTimeouts
from bench.random_models import create_model
from tests.engine.engine_contract import EngineCase, check_chunks, join
from tests.prove.live_engines import KINDS, PROMPT, VLLM_FLAGS, LiveServer, started_engine

PATIENT = RemoteTimeouts(continue_within_s=900.0)
"""vLLM's start takes minutes on a machine with few cores."""
GRAMMAR = r"""
start: "{\"words\": [" word (", " word){20,30} "]}"
word: "\"" /[a-z]{1,8}/ "\""
"""


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    server = LiveServer(request.param, *(VLLM_FLAGS if request.param == "vllm" else ()))
    try:
        server.start()
        yield server
    finally:
        server.terminate()


async def run_killed(engine: RemoteEngine, server: LiveServer, job: Job, num_tokens: int) -> list[Chunk]:
    """Runs a job whose server is killed once it has generated this number of tokens, and started again."""
    chunks: list[Chunk] = []
    task = asyncio.create_task(engine.generate(job, chunks.append))
    while len(join(chunks)) < num_tokens and not task.done():
        await asyncio.sleep(0.001)
    assert not task.done(), "the job has ended before the kill"
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await task
    check_chunks(job, chunks)
    return chunks


async def test_jobs_continue_after_a_restart(server: LiveServer) -> None:
    async with started_engine(server.url, timeouts=PATIENT) as engine:
        case = EngineCase(engine, PROMPT)
        fields: dict[str, Any] = {"max_tokens": 300, "temperature": 0.0, "top_logprobs": 0}
        whole = join(await case.run(**fields))
        chunks = await run_killed(engine, server, case.make_job(**fields), 20)
        assert (len(join(chunks)), chunks[-1].finish) == (300, "length")
        assert join(chunks)[:20] == whole[:20]

        job = case.make_job(grammar=GRAMMAR, max_tokens=1500, temperature=1.0, ignore_eos=False)
        chunks = await run_killed(engine, server, job, 20)
        assert chunks[-1].finish == "stop", chunks[-1]
        assert 21 <= len(json.loads(decode(join(chunks)))["words"]) <= 31


def decode(tokens: tuple[int, ...]) -> str:
    """Returns the text of tokens of the tiny model, without its control tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(create_model("tiny") / "tokenizer.json"))
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True))
