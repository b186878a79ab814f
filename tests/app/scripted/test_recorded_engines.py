"""A recorded engine keeps the contract of engines, and the jobs of other engines replay chunk by chunk."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from antiphon.app.scripted.recording_engine import RecordingEngine
from antiphon.app.scripted.recording_file import RecordingFile
from antiphon.engine.protocol import Chunk, Engine, EngineInfo, Job, Sampling
from antiphon.engine.scripted.engine import ScriptedEngine, load_script, parse_script
from antiphon.engine.scripted.script import Recording, load_recording
from tests.engine.chunk_stream import stream_chunks
from tests.engine.engine_contract import CHECKS, EngineCase
from tests.engine.remote.fake_server import Reply, play_vllm, sse, vllm_tokens
from tests.engine.remote.remote_helpers import EOS, remote_engine
from tests.engine.threaded_engine import build_threaded_engine
from tests.engine.tiny_models import build_tiny_core

PROMPT = tuple(range(3, 40))


def wrap_engine(inner: Engine, file: Path) -> RecordingEngine:
    def describe(info: EngineInfo) -> Recording:
        return Recording(model="m", dialect="hermes", engine=info)

    return RecordingEngine(inner, RecordingFile(file, lambda ids: " ".join(map(str, ids))), describe)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_recorded_engine_keeps_the_contract(
    tmp_path: Path, check: Callable[[EngineCase], Awaitable[None]]
) -> None:
    text = "".join(chr(0x100 + n % 200) for n in range(3000))
    replies = parse_script({"reply": [{"name": "any", "output": list(text), "cached_tokens": 300}]})
    info = EngineInfo(max_model_len=4096, vocab_size=1000)
    inner = ScriptedEngine(replies, encode=lambda piece: [ord(letter) for letter in piece], info=info, delay=0.002)
    engine = wrap_engine(inner, tmp_path / "jobs.toml")
    await engine.start()
    await check(EngineCase(engine, PROMPT, follows_bias=False))
    await engine.close()


async def replay_job(file: Path, job: Job) -> list[Chunk]:
    """Returns the chunks of a job that the recording answers."""
    recording = load_recording(file)
    assert recording is not None
    player = ScriptedEngine(load_script(file), encode=lambda _: [], info=recording.engine)
    return [chunk async for chunk in stream_chunks(player, structs.replace(job, id="again"))]


async def record_job(engine: RecordingEngine, job: Job) -> list[Chunk]:
    return [chunk async for chunk in stream_chunks(engine, job)]


def merge_cached(chunks: list[Chunk]) -> list[Chunk]:
    """Returns the chunks as the scripted engine has them: with the cached tokens on the first one, without a replica."""
    cached = max(chunk.cached_tokens for chunk in chunks)
    return [
        structs.replace(chunk, cached_tokens=cached * (not number), replica="", attempt=0)
        for number, chunk in enumerate(chunks)
    ]


@pytest.mark.parametrize("top_logprobs", [None, 2])
async def test_job_of_a_torch_engine_replays(tmp_path: Path, top_logprobs: int | None) -> None:
    engine = wrap_engine(
        build_threaded_engine(partial(build_tiny_core, max_model_len=4096)), file := tmp_path / "jobs.toml"
    )
    await engine.start()
    job = Job(id="job", tokens=PROMPT, sampling=Sampling(seed=1, max_tokens=20, top_logprobs=top_logprobs))
    chunks = await record_job(engine, job)
    await engine.close()
    assert len(chunks) > 2 and await replay_job(file, job) == merge_cached(chunks)


@pytest.mark.parametrize(
    "reply",
    [
        play_vllm(50, 51, EOS, cached=3),
        play_vllm(50, 51, finish="length"),
        Reply(sse(vllm_tokens(50), vllm_tokens(51))),
    ],
    ids=["stop", "length", "broken"],
)
async def test_job_of_a_remote_engine_replays(tmp_path: Path, reply: Reply) -> None:
    file = tmp_path / "jobs.toml"
    async with remote_engine(default=reply) as (inner, _):
        engine = wrap_engine(inner, file)
        await engine.start()
        job = Job(id="job", tokens=PROMPT)
        chunks, info = await record_job(engine, job), inner.info
    assert len(chunks) > 2 and await replay_job(file, job) == merge_cached(chunks)
    recording = load_recording(file)
    assert recording is not None and recording.engine == info
