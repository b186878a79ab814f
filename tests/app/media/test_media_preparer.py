"""The preparer: what is cached, for whom, and what its faults say."""

import asyncio
import hashlib
import mmap
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antiphon.app.media.budget import MediaLimits
from antiphon.app.media.media_event import MediaEvent
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.observability.metrics.collector import MetricsCollector
from antiphon.app.sandbox.media.media_process import MediaAnswer, MediaProcess
from antiphon.app.sandbox.media.messages import ImageFacts, MediaRequest
from tests.app.media.pictures import QWEN3_VL_PROCESSOR, make_png, write_model

PICTURE = make_png(96, 64)
SHA256 = hashlib.sha256(PICTURE).digest()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the qwen3_vl family."""
    return write_model(tmp_path_factory.mktemp("qwen3_vl"))


@pytest.fixture
async def events() -> list[MediaEvent]:
    """What the preparer has reported."""
    return []


@pytest.fixture
async def preparer(events: list[MediaEvent]) -> AsyncIterator[MediaPreparer]:
    """A preparer that is closed after the test."""
    preparer = MediaPreparer(MediaLimits(image_tokens=512), events.append)
    yield preparer
    await preparer.close()


async def test_picture_is_prepared_once(preparer: MediaPreparer, events: list[MediaEvent], folder: Path) -> None:
    assert await preparer.inspect("a", SHA256, PICTURE) == ImageFacts("image/png", 96, 64)
    asked = [preparer.prepare("a", SHA256, PICTURE, folder=folder, detail=None) for _ in range(3)]
    first, second, third = await asyncio.gather(*asked)
    assert first == second == third == preparer.find("a", SHA256, folder=folder, detail=None)
    assert first.rows == first.replacement.count("<|image_pad|>") == first.grid[1] * first.grid[2] // 4
    assert await preparer.prepare("a", SHA256, b"", folder=folder, detail=None) == first
    assert [event.result for event in events] == ["prepared", "known"]


async def test_arrays_are_in_a_sealed_file(preparer: MediaPreparer, folder: Path) -> None:
    image = await preparer.prepare("a", SHA256, PICTURE, folder=folder, detail=None)
    arrays = preparer.load_arrays("a", image.key)
    assert arrays is not None
    try:
        assert [array.name for array in arrays.arrays] == ["pixel_values", "image_grid_thw"]
        with pytest.raises(OSError, match="not permitted"):
            os.pwrite(arrays.descriptor, b"x", 0)
        with mmap.mmap(arrays.descriptor, arrays.size, prot=mmap.PROT_READ) as mapped:
            grid = np.frombuffer(mapped, np.int64, 3, arrays.arrays[1].offset).copy()
        assert tuple(grid) == image.grid
    finally:
        os.close(arrays.descriptor)


async def test_arrays_are_those_of_transformers(preparer: MediaPreparer, folder: Path) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    rows = np.random.default_rng(1).integers(0, 256, (90, 130, 3), dtype=np.uint8)
    data = make_png(130, 90, rows.tobytes())
    image = await preparer.prepare("a", hashlib.sha256(data).digest(), data, folder=folder, detail=None)
    processor = Qwen2VLImageProcessorPil(patch_size=16, merge_size=2, size=QWEN3_VL_PROCESSOR["size"])
    expected = processor(images=[Image.fromarray(rows)], return_tensors="np")
    arrays = preparer.load_arrays("a", image.key)
    assert arrays is not None
    content = os.pread(arrays.descriptor, arrays.size, 0)
    os.close(arrays.descriptor)
    for array in arrays.arrays:
        found = np.frombuffer(content, array.dtype, array.size // np.dtype(array.dtype).itemsize, array.offset)
        assert np.array_equal(found.reshape(array.shape), expected[array.name])


async def test_system_without_files_in_memory(
    preparer: MediaPreparer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = await preparer.prepare("a", SHA256, PICTURE, folder=folder, detail=None)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "without_linux"))
    other = MediaPreparer(preparer.limits)
    try:
        assert await other.prepare("a", SHA256, PICTURE, folder=folder, detail=None) == image
        assert "a limit of memory" in other.processes[0].missing
        contents = []
        for arrays in (preparer.load_arrays("a", image.key), other.load_arrays("a", image.key)):
            assert arrays is not None
            contents.append(os.pread(arrays.descriptor, arrays.size, 0))
            os.close(arrays.descriptor)
        assert contents[0] == contents[1]
    finally:
        await other.close()


async def test_owners_share_nothing(preparer: MediaPreparer, events: list[MediaEvent], folder: Path) -> None:
    image = await preparer.prepare("a", SHA256, PICTURE, folder=folder, detail=None)
    assert preparer.find("b", SHA256, folder=folder, detail=None) is None
    assert preparer.load_arrays("b", image.key) is None
    await preparer.prepare("b", SHA256, PICTURE, folder=folder, detail=None)
    assert [event.result for event in events] == ["prepared", "prepared"]


async def test_fault_is_remembered(preparer: MediaPreparer, events: list[MediaEvent], folder: Path) -> None:
    for data in (PICTURE[:60], b"not sent"):
        with pytest.raises(MediaFault) as caught:
            await preparer.prepare("a", b"\0" * 32, data, folder=folder, detail=None)
        assert (caught.value.code, caught.value.detail) == ("unreadable", "is damaged or cut.")
    assert [event.result for event in events] == ["unreadable"] * 2


async def test_cancelled_picture_is_no_prepared_one(
    preparer: MediaPreparer, events: list[MediaEvent], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await preparer.describe(folder)
    running, may_end = threading.Event(), threading.Event()
    ask = MediaProcess.ask

    def ask_slowly(process: MediaProcess, request: MediaRequest, payload: bytes) -> MediaAnswer:
        running.set()
        assert may_end.wait(60)
        return ask(process, request, payload)

    monkeypatch.setattr(MediaProcess, "ask", ask_slowly)
    task = asyncio.create_task(preparer.prepare("a", SHA256, PICTURE, folder=folder, detail=None))
    assert await asyncio.to_thread(running.wait, 60)
    task.cancel()
    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
    may_end.set()
    await preparer.prepare("a", SHA256, PICTURE, folder=folder, detail=None)
    assert [event.result for event in events] == ["cancelled", "prepared"]


async def test_metrics_count_pictures_and_restarts(preparer: MediaPreparer) -> None:
    metrics = MetricsCollector(())
    metrics.media.watch([preparer])
    for result in ("prepared", "known", "unreadable"):
        metrics.media.observe(MediaEvent(kind="image", result=result, elapsed_s=2.0))
    read = metrics.registry.get_sample_value
    assert read("antiphon:media_total", {"kind": "image", "result": "known"}) == 1
    assert read("antiphon:media_prepare_seconds_sum", {"kind": "image"}) == 2
    assert read("antiphon:media_worker_restarts_total") == 0
