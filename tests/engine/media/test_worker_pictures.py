"""Pictures through the worker: its requests, sealed files, missing pictures, cancelled jobs, one encoding for many."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from antiphon.engine.media_messages import ARRAY_ALIGNMENT, ArrayType, MediaArray, MediaArrays, MediaUnavailable
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.protocol import Chunk, EngineError, Job
from tests.engine.media.picture_families import (
    Picture,
    Prompt,
    build_picture_core,
    draw_picture,
    generate_reference,
    join_output,
    make_picture_job,
    make_prompt,
)
from tests.engine.threaded_engine import build_threaded_engine

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd"),
]

FAMILY = "qwen3_vl"
TYPES: dict[torch.dtype, ArrayType] = {
    torch.float32: "float32",
    torch.int64: "int64",
    torch.bool: "bool",
    torch.uint8: "uint8",
}
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def write_arrays(picture: Picture, *, seals: int = SEALS, shorten: int = 0) -> MediaArrays:
    """Returns the arrays of a picture in a memfd."""
    content, arrays = bytearray(), []
    for name, tensor in picture.arrays.items():
        content += bytes(-len(content) % ARRAY_ALIGNMENT)
        shape, dtype = tuple(tensor.shape), TYPES[tensor.dtype]
        arrays.append(MediaArray(name=name, dtype=dtype, shape=shape, offset=len(content)))
        content += tensor.numpy().tobytes()
    descriptor = os.memfd_create("picture", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(descriptor, content[: len(content) - shorten])
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return MediaArrays(arrays=tuple(arrays), size=len(content), descriptor=descriptor)


class PictureSource:
    """Has the pictures of some prompts. A picture is given once `may_answer` is set."""

    def __init__(self, *prompts: Prompt) -> None:
        self.pictures = {picture.key: picture for prompt in prompts for picture in prompt.pictures}
        self.loads: list[tuple[str, bytes]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.seals, self.shorten = SEALS, 0

    async def load_arrays(self, job: Job, key: bytes) -> MediaArrays:
        self.loads.append((job.id, key))
        await self.may_answer.wait()
        if key not in self.pictures:
            raise MediaUnavailable("the picture is gone")
        return write_arrays(self.pictures[key], seals=self.seals, shorten=self.shorten)


@pytest.fixture
async def engine() -> AsyncIterator[ProcessEngine]:
    engine = build_threaded_engine(lambda: build_picture_core(FAMILY, enable_prefix_caching=False))
    yield engine
    await engine.close()


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def run(engine: ProcessEngine, prompt: Prompt, name: str = "j", **options: object) -> list[Chunk]:
    chunks: list[Chunk] = []
    await engine.generate(make_picture_job(prompt, name, **options), chunks.append)
    return chunks


def prompt_of(*seeds: int) -> Prompt:
    return make_prompt(*(part for seed in seeds for part in (3, draw_picture(FAMILY, seed))), 5)


async def test_output_equals_generate(engine: ProcessEngine) -> None:
    prompt = prompt_of(1, 2, 1)
    source = PictureSource(prompt)
    engine.attach_media(source)
    await engine.start()
    outputs = await asyncio.gather(*(run(engine, prompt, f"j{number}") for number in range(3)))
    assert [join_output(output) for output in outputs] == [generate_reference(FAMILY, prompt)] * 3
    assert len(source.loads) == 2 and engine.stats().encoded_images == 2
    before = count_descriptors()
    await run(engine, prompt, "again")
    assert len(source.loads) == 2 and count_descriptors() == before


async def start_with_held_pictures(engine: ProcessEngine, prompt: Prompt) -> PictureSource:
    """Starts the engine on a source that answers once `may_answer` is set."""
    source = PictureSource(prompt)
    source.may_answer.clear()
    engine.attach_media(source)
    await engine.start()
    return source


async def test_text_continues_while_a_picture_is_awaited(engine: ProcessEngine) -> None:
    prompt = prompt_of(1)
    source = await start_with_held_pictures(engine, prompt)
    waiting = asyncio.create_task(run(engine, prompt, "waits"))
    assert join_output(await run(engine, make_prompt(20), "text")) == generate_reference(FAMILY, make_prompt(20))
    assert not waiting.done()
    source.may_answer.set()
    assert join_output(await waiting) == generate_reference(FAMILY, prompt)


async def test_a_missing_picture_ends_its_job_only(engine: ProcessEngine) -> None:
    prompt, missing = prompt_of(1), prompt_of(1, 2)
    engine.attach_media(PictureSource(prompt))
    await engine.start()
    failed, whole = await asyncio.gather(run(engine, missing, "missing"), run(engine, prompt, "whole"))
    assert failed[-1].fault is not None and failed[-1].fault.code == "media_unavailable" and failed[-1].fault.retryable
    assert failed[-1].fault.message == "the picture is gone"
    assert join_output(whole) == generate_reference(FAMILY, prompt)


@pytest.mark.parametrize(("seals", "shorten"), [(0, 0), (SEALS, 64)])
async def test_an_untrustworthy_file_ends_its_job_only(engine: ProcessEngine, seals: int, shorten: int) -> None:
    prompt = prompt_of(1)
    source = PictureSource(prompt)
    source.seals, source.shorten = seals, shorten
    engine.attach_media(source)
    await engine.start()
    chunks = await run(engine, prompt, "bad")
    assert chunks[-1].fault is not None and chunks[-1].fault.code == "server_error"
    source.seals, source.shorten = SEALS, 0
    assert join_output(await run(engine, prompt, "good")) == generate_reference(FAMILY, prompt)


async def test_arrays_that_do_not_fit_end_their_job_only(engine: ProcessEngine) -> None:
    prompt = prompt_of(1)
    source = PictureSource(prompt)
    (key,) = source.pictures
    source.pictures[key] = draw_picture(FAMILY, 1, 2)
    engine.attach_media(source)
    await engine.start()
    chunks = await run(engine, prompt, "bad")
    assert chunks[-1].fault is not None and chunks[-1].fault.code == "server_error"
    assert join_output(await run(engine, make_prompt(9), "text")) == generate_reference(FAMILY, make_prompt(9))


async def test_the_picture_of_a_cancelled_job_is_asked_for_again(engine: ProcessEngine) -> None:
    prompt = prompt_of(1)
    source = await start_with_held_pictures(engine, prompt)
    first = asyncio.create_task(run(engine, prompt, "first"))
    while not source.loads:
        await asyncio.sleep(0.01)
    second = asyncio.create_task(run(engine, prompt, "second"))
    await asyncio.sleep(0.05)
    await engine.cancel("first")
    assert (await first)[-1].finish == "cancelled"
    source.may_answer.set()
    assert join_output(await second) == generate_reference(FAMILY, prompt)


async def test_a_deadline_ends_a_job_that_waits_for_its_picture(engine: ProcessEngine) -> None:
    prompt = prompt_of(1)
    source = await start_with_held_pictures(engine, prompt)
    chunks = await run(engine, prompt, "late", deadline=0.3)
    assert chunks[-1].fault is not None and chunks[-1].fault.code == "deadline_exceeded"
    source.may_answer.set()


async def test_a_job_without_a_source_ends(engine: ProcessEngine) -> None:
    await engine.start()
    chunks = await run(engine, prompt_of(1))
    assert chunks[-1].fault is not None and chunks[-1].fault.code == "media_unavailable"
    text = prompt_of(1)._replace(tokens=[5] * len(prompt_of(1).tokens))
    with pytest.raises(EngineError, match="a picture of 4 tokens has 0 in the prompt"):
        await run(engine, text)
