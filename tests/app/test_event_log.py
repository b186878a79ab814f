"""The log: many readers, none of which can hold the writer up or miss a frame."""

import asyncio

import pytest

from antiphon.app.event_log import MOST_AT_ONCE, Log
from antiphon.app.store.memory import MemoryStore
from antiphon.events.base import Event
from antiphon.events.response import Response
from antiphon.state.segments import Say
from tests.state.machine_helpers import HEAD, machine


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


async def test_news_is_told_once_however_much_there_is_and_not_to_whoever_has_left() -> None:
    log, told = Log(HEAD, ""), list[int]()
    steps = story()
    with log.read(0, lambda: told.append(len(log.frames))) as reading:
        log.append(steps[0])
        log.append(steps[1])
        assert told == [], "whoever writes has its say first"
        await asyncio.sleep(0)
        assert told == [len(log.frames)] and len(reading.take()) == len(log.frames) and not reading.take()
        log.append(steps[2])
    await asyncio.sleep(0)
    log.append(steps[3])
    await asyncio.sleep(0)
    assert len(told) == 1


async def test_a_reading_is_done_when_the_log_has_ended_and_all_was_taken() -> None:
    log = Log(HEAD, "")
    with log.read(0, lambda: None) as reading:
        log.append(story()[0])
        log.end()
        assert not reading.done
        reading.take()
        assert reading.done


async def test_a_reader_that_leaves_while_it_waits_is_in_nobodys_way() -> None:
    log, steps = Log(HEAD, ""), story()
    leaving, staying = asyncio.create_task(read(log)), asyncio.create_task(read(log))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    for step in steps:
        log.append(step)
    log.end()
    assert await staying == list(range(sum(map(len, steps))))


async def test_a_long_log_is_read_in_lists_of_a_bounded_length() -> None:
    log, m = Log(HEAD, ""), machine()
    log.append(m.begin())
    for _ in range(3 * MOST_AT_ONCE):
        log.append(m.feed(Say("a")))
    log.end()
    lists = [frames async for frames in log.follow()]
    assert max(map(len, lists)) == MOST_AT_ONCE
    assert [frame for frames in lists for frame in frames] == log.frames


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


def test_the_store_counts_what_a_log_has_grown_to_since() -> None:
    """A log is put when its turn opens: nearly all of its bytes come later."""
    small = ended("resp_a").size
    store = MemoryStore(size=small * 4)
    grown = Log(Response(id="resp_grown", created_at=1, model="m"), "")
    store.put(grown)
    m = machine()
    grown.append(m.begin())
    for _ in range(100):
        grown.append(m.feed(Say("word ")))
    store.put(ended("resp_1"))
    assert store.get("", "resp_grown") is grown, "it still runs"
    assert store.get("", "resp_1") is None, "what has ended goes first"
    grown.end()
    store.put(ended("resp_2"))
    assert store.get("", "resp_grown") is None and store.get("", "resp_2") is not None
    for number in range(3, 20):
        store.put(ended(f"resp_{number}"))
    assert len(store) == 3 or len(store) == 4
    assert store.get("", "resp_19") is not None
