"""Pictures of jobs in the scripted engine: loaded once each, told in the output, missing ones end the job."""

import fcntl
import os

import pytest

from antiphon.engine.media_messages import MediaArray, MediaArrays, MediaSpan, MediaUnavailable
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, Job, Sampling
from antiphon.engine.scripted.engine import ScriptedEngine, ScriptedReply, ScriptStep

SOFT = 9
INFO = EngineInfo(max_model_len=64, vocab_size=256, image_form="expanded", soft_ids=(SOFT,), suppressed_ids=(SOFT,))
FIRST, SECOND = bytes(32), bytes([1] * 32)


def sealed_file(size: int, *, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE) -> int:
    descriptor = os.memfd_create("picture", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class OneSource:
    """Has the picture `FIRST`, of 4 numbers."""

    def __init__(self, seals: int | None = None) -> None:
        self.loads: list[bytes] = []
        self._seals = seals

    async def load_arrays(self, job: Job, key: bytes) -> MediaArrays:
        self.loads.append(key)
        if key != FIRST:
            raise MediaUnavailable("the picture is gone")
        arrays = (MediaArray(name="pixel_values", dtype="float32", shape=(4,), offset=0),)
        descriptor = sealed_file(16) if self._seals is None else sealed_file(16, seals=self._seals)
        return MediaArrays(arrays=arrays, size=16, descriptor=descriptor)


def span(offset: int, key: bytes = FIRST, *, length: int = 2, rows: int = 2) -> MediaSpan:
    return MediaSpan(key=key, offset=offset, length=length, rows=rows)


async def run(*media: MediaSpan, source: OneSource | None, tokens: tuple[int, ...] = (1, SOFT, SOFT, 2)) -> list[Chunk]:
    reply = ScriptedReply(name="r", output=(ScriptStep(media=True),), tokens_per_chunk=0)
    engine = ScriptedEngine([reply], encode=lambda text: list(text.encode()), info=INFO)
    if source is not None:
        engine.attach_media(source)
    chunks: list[Chunk] = []
    await engine.generate(Job(id="j", tokens=tokens, media=media), chunks.append)
    return chunks


async def test_the_output_tells_what_the_job_has() -> None:
    source = OneSource()
    tokens = (1, SOFT, SOFT, SOFT, SOFT)
    chunks = await run(span(1), span(3), source=source, tokens=tokens)
    text = bytes(token for chunk in chunks for token in chunk.tokens).decode()
    assert text == "2 images: 2 tokens of 16 bytes, 2 tokens of 16 bytes"
    assert source.loads == [FIRST]


async def test_a_missing_picture_ends_the_admitted_job() -> None:
    for source in (OneSource(), None):
        first, last = await run(span(1, SECOND), source=source)
        assert first == Chunk()
        assert last.finish == "error" and last.fault is not None
        assert last.fault.code == "media_unavailable" and last.fault.retryable


async def test_a_file_that_can_change_is_refused() -> None:
    _, last = await run(span(1), source=OneSource(seals=fcntl.F_SEAL_SHRINK))
    assert last.fault is not None and "could still change" in last.fault.message


@pytest.mark.parametrize(
    ("media", "tokens"),
    [
        ((), (1, SOFT)),
        ((span(1, rows=1),), (1, SOFT, SOFT)),
        ((span(1),), (1, SOFT, SOFT, SOFT)),
        ((span(1), span(2)), (1, SOFT, SOFT, SOFT)),
        ((span(2),), (1, SOFT, SOFT)),
        ((span(1, b"short"),), (1, SOFT, SOFT)),
    ],
)
async def test_soft_tokens_outside_of_spans_are_refused(media: tuple[MediaSpan, ...], tokens: tuple[int, ...]) -> None:
    with pytest.raises(EngineError, match="picture"):
        await run(*media, source=OneSource(), tokens=tokens)


async def test_a_soft_token_may_be_banned_and_not_preferred() -> None:
    engine = ScriptedEngine([ScriptedReply(name="r", output=("a",))], encode=lambda _: [1], info=INFO)
    with pytest.raises(EngineError, match="logit_bias"):
        await engine.generate(Job(id="j", tokens=(1,), sampling=Sampling(logit_bias={SOFT: 0.1})), lambda _: None)
    for bias in (-100.0, 0.0):
        await engine.generate(Job(id="k", tokens=(1,), sampling=Sampling(logit_bias={SOFT: bias})), lambda _: None)
