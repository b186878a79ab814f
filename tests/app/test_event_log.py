"""The log: many readers, none of which can hold the writer up or miss a frame."""

import asyncio

import pytest

from antiphon.app.event_log import MAX_ENTRIES_PER_READ, EventLog
from antiphon.app.store.memory import MemoryStore
from antiphon.events.base import Event
from antiphon.events.response import Response
from antiphon.state.segments import Say
from tests.state.machine_helpers import HEAD, machine


def story() -> list[list[Event]]:
    """The steps of a short turn."""
    m = machine()
    return [m.begin(), m.feed(Say("a")), m.feed(Say("b")), m.stop()]


async def read(log: EventLog, start: int = 0) -> list[int]:
    return [frame.event.sequence_number async for frames in log.follow_entries(start) for frame in frames]


async def test_early_late_and_midway_readers_read_the_same() -> None:
    log, steps = EventLog(HEAD, ""), story()
    total = sum(map(len, steps))
    readers = [asyncio.create_task(read(log))]
    for step in steps:
        await asyncio.sleep(0)
        log.append_step(step)
        readers.append(asyncio.create_task(read(log)))
    log.end_log()
    for result in await asyncio.gather(*readers):
        assert result == list(range(total))


async def test_reading_on_from_any_number_misses_and_repeats_nothing() -> None:
    log = EventLog(HEAD, "")
    for step in story():
        log.append_step(step)
    log.end_log()
    for start in range(len(log.entries) + 2):
        assert await read(log, start) == list(range(start, len(log.entries)))


async def test_a_step_wakes_a_reader_once() -> None:
    log, batches = EventLog(HEAD, ""), []

    async def reader() -> None:
        batches.extend([len(frames) async for frames in log.follow_entries()])

    task = asyncio.create_task(reader())
    for step in story():
        await asyncio.sleep(0.01)
        log.append_step(step)
    log.end_log()
    await task
    assert batches == [len(step) for step in story()]


async def test_news_is_told_once_however_much_there_is_and_not_to_whoever_has_left() -> None:
    log, told = EventLog(HEAD, ""), list[int]()
    steps = story()
    with log.open_reader(0, lambda: told.append(len(log.entries))) as reading:
        log.append_step(steps[0])
        log.append_step(steps[1])
        assert told == [], "whoever writes has its say first"
        await asyncio.sleep(0)
        assert (
            told == [len(log.entries)]
            and len(reading.take_entries()) == len(log.entries)
            and not reading.take_entries()
        )
        log.append_step(steps[2])
    await asyncio.sleep(0)
    log.append_step(steps[3])
    await asyncio.sleep(0)
    assert len(told) == 1


async def test_a_reading_is_done_when_the_log_has_ended_and_all_was_taken() -> None:
    log = EventLog(HEAD, "")
    with log.open_reader(0, lambda: None) as reading:
        log.append_step(story()[0])
        log.end_log()
        assert not reading.at_end
        reading.take_entries()
        assert reading.at_end


async def test_a_reader_that_leaves_while_it_waits_is_in_nobodys_way() -> None:
    log, steps = EventLog(HEAD, ""), story()
    leaving, staying = asyncio.create_task(read(log)), asyncio.create_task(read(log))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    for step in steps:
        log.append_step(step)
    log.end_log()
    assert await staying == list(range(sum(map(len, steps))))


async def test_a_long_log_is_read_in_lists_of_a_bounded_length() -> None:
    log, m = EventLog(HEAD, ""), machine()
    log.append_step(m.begin())
    for _ in range(3 * MAX_ENTRIES_PER_READ):
        log.append_step(m.feed(Say("a")))
    log.end_log()
    lists = [frames async for frames in log.follow_entries()]
    assert max(map(len, lists)) == MAX_ENTRIES_PER_READ
    assert [frame for frames in lists for frame in frames] == log.entries


def test_a_gap_or_a_repeat_is_refused() -> None:
    log, steps = EventLog(HEAD, ""), story()
    with pytest.raises(RuntimeError, match="event 2 at position 0"):
        log.append_step(steps[1])
    log.append_step(steps[0])
    with pytest.raises(RuntimeError, match="event 0 at position 2"):
        log.append_step(steps[0])


def test_an_ended_log_takes_nothing_more() -> None:
    log = EventLog(HEAD, "")
    log.append_step(story()[0])
    log.end_log()
    with pytest.raises(RuntimeError, match="ended"):
        log.append_step(story()[1])


def ended(response_id: str, owner: str = "") -> EventLog:
    log = EventLog(Response(id=response_id, created_at=1, model="m"), owner)
    log.append_step(story()[0])
    log.end_log()
    return log


def test_the_store_keeps_owners_apart() -> None:
    store = MemoryStore()
    store.add_log(ended("resp_1", "a"))
    assert store.find_log("a", "resp_1") is not None
    assert store.find_log("b", "resp_1") is None
    assert store.find_log("a", "resp_2") is None


def test_the_store_finds_items_of_their_owner_only() -> None:
    log = EventLog(HEAD, "a")
    for step in story():
        log.append_step(step)
    store = MemoryStore()
    store.add_log(log)
    item = log.response.output[0] if log.response.output else None
    assert item is not None and store.find_item("a", item.id) == item
    assert store.find_item("b", item.id) is None and store.find_item("a", "msg_unknown") is None


def test_the_store_lets_go_of_the_oldest_finished_ones() -> None:
    store = MemoryStore(responses=2)
    running = EventLog(HEAD, "")
    store.add_log(running)
    for number in range(5):
        store.add_log(ended(f"resp_x{number}"))
    assert store.find_log("", HEAD.id) is running, "a running one is never dropped"
    assert len(store) == 2 and store.find_log("", "resp_x4") is not None


def test_the_store_stays_within_its_size() -> None:
    one = ended("resp_a")
    store = MemoryStore(size=int(one.size * 2.5))
    for number in range(10):
        store.add_log(ended(f"resp_x{number}"))
    assert len(store) == 2


def test_the_store_counts_what_a_log_has_grown_to_since() -> None:
    """A log is put when its turn opens: nearly all of its bytes come later."""
    small = ended("resp_a").size
    store = MemoryStore(size=small * 4)
    grown = EventLog(Response(id="resp_grown", created_at=1, model="m"), "")
    store.add_log(grown)
    m = machine()
    grown.append_step(m.begin())
    for _ in range(100):
        grown.append_step(m.feed(Say("word ")))
    store.add_log(ended("resp_1"))
    assert store.find_log("", "resp_grown") is grown, "it still runs"
    assert store.find_log("", "resp_1") is None, "what has ended goes first"
    grown.end_log()
    store.add_log(ended("resp_2"))
    assert store.find_log("", "resp_grown") is None and store.find_log("", "resp_2") is not None
    for number in range(3, 20):
        store.add_log(ended(f"resp_{number}"))
    assert len(store) == 3 or len(store) == 4
    assert store.find_log("", "resp_19") is not None
