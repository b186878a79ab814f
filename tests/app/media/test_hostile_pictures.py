"""Pictures that do harm elsewhere: each is an exact fault, or is read as any other viewer shows it.

All share one process, so that each meets what the others left of it.
"""

import asyncio
import os
import random
import signal
import struct
import time
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path

import pytest
import pytest_asyncio
from PIL import Image

from antiphon.app.media import media_queue
from antiphon.app.media.budget import MediaLimits
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_preparer import MediaPreparer
from antiphon.app.media.prepared_image import PreparedImage
from tests.app.media.hostile_pictures import FAULTS, JPEG, PNG, save_image
from tests.app.media.pictures import (
    make_gif,
    make_jpeg_segment,
    make_png,
    png_chunk,
    write_model,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMITS = MediaLimits(image_tokens=128, max_image_bytes=4 << 20)
FAULT_TEXTS = {
    "unreadable": "is damaged or cut.",
    "unsupported_format": "is not a PNG, JPEG, GIF or WebP image.",
    "too_slow": "takes too much time or memory to read.",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the qwen3_vl family."""
    return write_model(tmp_path_factory.mktemp("qwen3_vl"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def preparer() -> AsyncIterator[MediaPreparer]:
    """The preparer that all tests share."""
    preparer = MediaPreparer(LIMITS)
    yield preparer
    await preparer.close()


async def prepare(preparer: MediaPreparer, folder: Path, data: bytes, owner: str = "a") -> PreparedImage:
    return await preparer.prepare(owner, sha256(data).digest(), data, folder=folder, detail=None)


def _many_scans() -> bytes:
    data = save_image("JPEG", (8, 8), progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * 10_000 + data[-2:]


READABLE: dict[str, Callable[[], bytes]] = {
    "1 by 1": lambda: make_png(1, 1),
    "3 by 3": lambda: make_png(3, 3),
    "ratio of 200": lambda: make_png(400, 2),
    "100 000 small chunks": lambda: make_png(64, 64, extra=png_chunk(b"tEXt", b"k\0v") * 100_000),
    "GIF of 10 000 frames": lambda: make_gif(8, 8, frames=10_000),
    "GIF whose frame lies outside its screen": lambda: make_gif(8, 8, (100, 100, 8, 8)),
    "progressive JPEG of 10 000 scans": _many_scans,
    "PNG and ZIP": lambda: PNG + b"PK\x03\x04" + b"\0" * 100,
    "GIF and script": lambda: make_gif(8, 8) + b"/*<script>alert(1)</script>*/",
    "JPEG and PDF": lambda: JPEG + b"%PDF-1.7\n",
    "two pictures in a JPEG": lambda: save_image("MPO", save_all=True, append_images=[Image.new("RGB", (64, 48))]),
    "JPEG with 60 KB of EXIF": lambda: JPEG[:2] + make_jpeg_segment(0xE1, b"Exif\0\0" + b"\xff" * 60_000) + JPEG[2:],
    "animated PNG of 10 000 frames": lambda: make_png(8, 8, extra=png_chunk(b"acTL", struct.pack(">II", 10_000, 0))),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_hostile_picture_is_refused(preparer: MediaPreparer, folder: Path, name: str) -> None:
    make, code = FAULTS[name]
    with pytest.raises(MediaFault) as caught:
        await prepare(preparer, folder, make())
    assert caught.value.code == code
    if code in FAULT_TEXTS:
        assert caught.value.detail == FAULT_TEXTS[code]
    else:
        assert caught.value.found > caught.value.allowed > 0
    await _check_alive(preparer, folder)


@pytest.mark.parametrize("name", READABLE)
async def test_hostile_picture_is_read(preparer: MediaPreparer, folder: Path, name: str) -> None:
    image = await prepare(preparer, folder, READABLE[name]())
    assert 0 < image.rows <= 128
    await _check_alive(preparer, folder)


@pytest.mark.parametrize("part", range(1, 16))
async def test_cut_jpeg(preparer: MediaPreparer, folder: Path, part: int) -> None:
    with pytest.raises(MediaFault) as caught:
        await prepare(preparer, folder, JPEG[: len(JPEG) * part // 16])
    assert caught.value.code == "unreadable"


async def _check_alive(preparer: MediaPreparer, folder: Path) -> None:
    color = random.Random(time.monotonic_ns()).randbytes(3)
    assert (await prepare(preparer, folder, make_png(32, 32, color * 32 * 32))).rows == 64


async def test_faults_have_numbers() -> None:
    faults = {
        MediaFault("too_large", "pixels", found=108_000_000, allowed=40_000_000, width=12_000, height=9_000): (
            "is 12000x9000 pixels; at most 40000000 pixels are read."
        ),
        MediaFault("too_large", "side", found=16_001, allowed=16_000, width=16_001, height=1): (
            "is 16001x1 pixels; at most 16000 pixels a side are read."
        ),
        MediaFault("too_small", "ratio", found=201, allowed=200, width=201, height=1): (
            "is 201x1 pixels; one side may be at most 200 times as long as the other."
        ),
        MediaFault("too_large", "bytes", found=9, allowed=8): "has 9 bytes; at most 8 are read.",
    }
    assert {fault.detail for fault in faults} == set(faults.values())


async def test_owner_with_many_pictures_holds_up_nobody(preparer: MediaPreparer, folder: Path) -> None:
    finished: list[str] = []

    async def run(owner: str, number: int) -> None:
        await prepare(preparer, folder, make_png(32, 32, bytes([number, len(owner), 9]) * 32 * 32), owner)
        finished.append(owner)

    await asyncio.gather(*(run("many", number) for number in range(40)), run("one", 1), run("two", 1))
    assert finished.index("one") < 6 and finished.index("two") < 6


async def test_full_queue_is_busy(preparer: MediaPreparer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_queue, "MAX_WAITING_OF_OWNER", 8)
    many = [prepare(preparer, folder, make_png(32, 32, os.urandom(32 * 32 * 3))) for _ in range(20)]
    results = await asyncio.gather(*many, prepare(preparer, folder, PNG, "another"), return_exceptions=True)
    codes = [result.code if isinstance(result, MediaFault) else "" for result in results]
    assert set(codes) == {"", "busy"} and codes.count("") >= 9 and not codes[-1]


async def test_killed_process_is_replaced(preparer: MediaPreparer, folder: Path) -> None:
    await _check_alive(preparer, folder)
    (process,) = preparer.processes
    for delay_s in (0.0, 0.02):
        pid = process.pid
        assert pid is not None
        running = asyncio.create_task(prepare(preparer, folder, make_png(640, 480, os.urandom(640 * 480 * 3))))
        await asyncio.sleep(delay_s)
        os.kill(pid, signal.SIGKILL)
        assert (await running).rows > 0  # the picture is not at fault: it is read once more
        await _check_alive(preparer, folder)


async def test_costly_picture_ends_only_itself(folder: Path) -> None:
    preparer = MediaPreparer(MediaLimits(image_tokens=128, cpu_limit_s=0.05))
    try:
        with pytest.raises(MediaFault) as caught:
            await prepare(preparer, folder, make_png(6_000, 6_000))
        assert (caught.value.code, caught.value.detail) == ("too_slow", FAULT_TEXTS["too_slow"])
        assert preparer.num_restarts >= 1
        assert (await preparer.inspect("a", sha256(PNG).digest(), PNG)).width == 64
    finally:
        await preparer.close()


async def test_client_that_goes_leaves_at_most_the_running_picture(preparer: MediaPreparer, folder: Path) -> None:
    size = (await prepare(preparer, folder, make_png(320, 320, os.urandom(320 * 320 * 3)))).size
    used = preparer.memory.used_bytes
    pictures = [make_png(320, 320, os.urandom(320 * 320 * 3)) for _ in range(4)]
    tasks = [asyncio.create_task(prepare(preparer, folder, data)) for data in pictures]
    await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    done_bytes = sum(
        result.size for result in results if not isinstance(result, BaseException)
    )  # before the client went
    later = await prepare(preparer, folder, make_png(32, 32, os.urandom(32 * 32 * 3)))
    # The process may have answered for one more in the moment of the cancellation.
    assert preparer.memory.used_bytes <= used + done_bytes + size + later.size


async def test_same_picture_is_decoded_once(preparer: MediaPreparer, folder: Path) -> None:
    data = make_png(64, 64, os.urandom(64 * 64 * 3))
    images = await asyncio.gather(*(prepare(preparer, folder, data) for _ in range(100)))
    assert len({image.key for image in images}) == 1
