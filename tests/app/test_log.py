"""The log: many readers, none of which can hold the writer up or miss a frame."""

import asyncio

import pytest

from app.log import Log
from app.store.memory import MemoryStore
from events.base import Event
from events.response import Response
from state.segments import Say
from tests.state.words import HEAD, machine


def story() -> list[list[Event]]:
    """The steps of a short turn."""
    m = machine()
    return [m.begin(), m.feed(Say("a")), m.feed(Say("b")), m.stop()]


async def read(log: Log, start: int = 0) -> list[int]:
    return [frame.event.sequence_number async for frames in log.follow(start) for frame in frames]


async def test_early_late_and_midway_readers_read_the_same() -> None:
    log, steps = Log(HEAD, ""), story()
    total = sum(map(len, steps))
    readers = [asyncio.create_task(read(log))]
    for step in steps:
        await asyncio.sleep(0)
        log.append(step)
        readers.append(asyncio.create_task(read(log)))
    log.end()
    for result in await asyncio.gather(*readers):
        assert result == list(range(total))


async def test_reading_on_from_any_number_misses_and_repeats_nothing() -> None:
    log = Log(HEAD, "")
    for step in story():
        log.append(step)
    log.end()
    for start in range(len(log.frames) + 2):
        assert await read(log, start) == list(range(start, len(log.frames)))


async def test_a_step_wakes_a_reader_once() -> None:
    log, batches = Log(HEAD, ""), []

    async def reader() -> None:
        batches.extend([len(frames) async for frames in log.follow()])

    task = asyncio.create_task(reader())
    for step in story():
        await asyncio.sleep(0.01)
        log.append(step)
    log.end()
    await task
    assert batches == [len(step) for step in story()]


async def test_a_silent_log_says_so() -> None:
    log = Log(HEAD, "")
    log.append(story()[0])
    following = log.follow(idle=0.01)
    assert len(await anext(following)) == 2
    assert await anext(following) == []
    log.append(story()[1])
    assert [frame.event.sequence_number for frame in await anext(following)] == [2, 3, 4]
    await following.aclose()  # type: ignore[attr-defined]


def test_a_gap_or_a_repeat_is_refused() -> None:
    log, steps = Log(HEAD, ""), story()
    with pytest.raises(RuntimeError, match="event 2 at position 0"):
        log.append(steps[1])
    log.append(steps[0])
    with pytest.raises(RuntimeError, match="event 0 at position 2"):
        log.append(steps[0])


def test_an_ended_log_takes_nothing_more() -> None:
    log = Log(HEAD, "")
    log.append(story()[0])
    log.end()
    with pytest.raises(RuntimeError, match="ended"):
        log.append(story()[1])


def ended(response_id: str, owner: str = "") -> Log:
    log = Log(Response(id=response_id, created_at=1, model="m"), owner)
    log.append(story()[0])
    log.end()
    return log


def test_the_store_keeps_owners_apart() -> None:
    store = MemoryStore()
    store.put(ended("resp_1", "a"))
    assert store.get("a", "resp_1") is not None
    assert store.get("b", "resp_1") is None
    assert store.get("a", "resp_2") is None


def test_the_store_finds_items_of_their_owner_only() -> None:
    log = Log(HEAD, "a")
    for step in story():
        log.append(step)
    store = MemoryStore()
    store.put(log)
    item = log.response.output[0] if log.response.output else None
    assert item is not None and store.item("a", item.id) == item
    assert store.item("b", item.id) is None and store.item("a", "msg_unknown") is None


def test_the_store_lets_go_of_the_oldest_finished_ones() -> None:
    store = MemoryStore(responses=2)
    running = Log(HEAD, "")
    store.put(running)
    for number in range(5):
        store.put(ended(f"resp_x{number}"))
    assert store.get("", HEAD.id) is running, "a running one is never dropped"
    assert len(store) == 2 and store.get("", "resp_x4") is not None


def test_the_store_stays_within_its_size() -> None:
    one = ended("resp_a")
    store = MemoryStore(size=int(one.size * 2.5))
    for number in range(10):
        store.put(ended(f"resp_x{number}"))
    assert len(store) == 2
