"""Pictures that wait for a process: how many may wait, of one owner and of all, and that owners take turns."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator

import pytest

from antiphon.app.media import media_queue, prepared_image
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.media.media_queue import MediaQueue
from antiphon.app.media.prepared_image import EncodedImage, MediaMemory
from antiphon.app.sandbox.media.media_process import MediaAnswer, MediaProcess
from antiphon.app.sandbox.media.messages import ImageFacts, ImageLimits, InspectRequest, MediaRequest
from antiphon.engine.media_messages import MediaArrays
from tests.progress import HANG_TIMEOUT_S

REQUEST = InspectRequest(ImageLimits())
MAX_WAITING, MAX_WAITING_OF_OWNER = 5, 3


class HeldProcess(MediaProcess):
    """Answers once `release` has been called, and notes the payloads in their order."""

    def __init__(self) -> None:
        super().__init__("none")
        self._released = threading.Event()
        self.payloads: list[bytes] = []

    def ask(self, _request: MediaRequest, payload: bytes = b"") -> MediaAnswer:
        assert self._released.wait(HANG_TIMEOUT_S)
        self.payloads.append(payload)
        return MediaAnswer(reply=ImageFacts("image/png", 1, 1))

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def process() -> HeldProcess:
    return HeldProcess()


@pytest.fixture
async def queue(process: HeldProcess, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MediaQueue]:
    monkeypatch.setattr(media_queue, "MAX_WAITING_OF_OWNER", MAX_WAITING_OF_OWNER)
    queue = MediaQueue([process], MAX_WAITING)
    yield queue
    process.release()
    await queue.close()


async def send(queue: MediaQueue, owner: str, count: int) -> list[asyncio.Task[MediaAnswer]]:
    """Sends pictures, and waits until each runs, waits or is refused."""
    tasks = [asyncio.create_task(queue.exchange(owner, REQUEST, owner.encode())) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def count_refused(tasks: list[asyncio.Task[MediaAnswer]]) -> int:
    faults = [task.exception() for task in tasks if task.done()]
    assert all(isinstance(fault, MediaFault) and fault.code == "busy" for fault in faults)
    return len(faults)


async def test_owner_above_its_share_is_refused_and_another_is_served(queue: MediaQueue, process: HeldProcess) -> None:
    many = await send(queue, "many", 1 + MAX_WAITING_OF_OWNER + 2)
    assert count_refused(many) == 2
    one = await send(queue, "one", 1)
    process.release()
    await asyncio.gather(*one)
    assert process.payloads.index(b"one") <= 2, "it waits for the picture that runs and for one other"
    await asyncio.gather(*many[: 1 + MAX_WAITING_OF_OWNER])


async def test_owners_together_are_refused_above_the_limit(queue: MediaQueue, process: HeldProcess) -> None:
    many, more = await send(queue, "many", 1 + MAX_WAITING_OF_OWNER), await send(queue, "more", MAX_WAITING_OF_OWNER)
    assert (count_refused(many), count_refused(more)) == (0, MAX_WAITING_OF_OWNER * 2 - MAX_WAITING)
    assert count_refused(await send(queue, "one", 1)) == 1
    process.release()
    await asyncio.gather(*many, *more[: MAX_WAITING - MAX_WAITING_OF_OWNER])
    await asyncio.gather(*await send(queue, "one", 1))


def keep_arrays(memory: MediaMemory, owner: str, key: bytes, size: int) -> int:
    """Returns the descriptor, which the memory owns."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    memory.keep(owner, MediaArrays(arrays=(), size=size, descriptor=descriptor), key)
    return descriptor


def test_prepared_pictures_used_longest_ago_are_dropped_above_the_limit_of_bytes() -> None:
    memory = MediaMemory(max_bytes=100)
    oldest = keep_arrays(memory, "many", b"0", 40)
    memory.keep("many", EncodedImage(key=b"1", png=bytes(40), width=1, height=1, tokens=0), b"1")
    keep_arrays(memory, "one", b"2", 40)
    assert [memory.has(*place) for place in (("many", b"0"), ("many", b"1"), ("one", b"2"))] == [False, True, True]
    assert memory.used_bytes == 80
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(oldest)
    memory.clear()


def test_prepared_pictures_used_longest_ago_are_dropped_above_the_limit_of_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prepared_image, "MAX_KEPT_IMAGES", 3)
    memory = MediaMemory(max_bytes=100)
    for number in range(5):
        keep_arrays(memory, "many", bytes([number]), 1)
    assert [memory.has("many", bytes([number])) for number in range(5)] == [False, False, True, True, True]
    memory.clear()
