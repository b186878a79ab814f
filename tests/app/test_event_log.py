"""The event log, whose readers neither block the writer nor miss an entry."""

import asyncio

import pytest

from antiphon.app.turn_types.event_log import MAX_ENTRIES_PER_READ, EventLog
from antiphon.events.base import Event
from antiphon.state.segments import Say
from tests.state.machine_helpers import INITIAL_RESPONSE, create_machine


def make_steps() -> list[list[Event]]:
    """Returns the steps of a short turn."""
    machine = create_machine()
    return [machine.begin(), machine.feed(Say("a")), machine.feed(Say("b")), machine.stop()]


async def read_numbers(log: EventLog, start: int = 0) -> list[int]:
    return [entry.event.sequence_number async for entries in log.follow_entries(start) for entry in entries]


async def test_readers_that_start_at_any_time_read_the_same_entries() -> None:
    log, steps = EventLog(INITIAL_RESPONSE, ""), make_steps()
    total = sum(map(len, steps))
    readers = [asyncio.create_task(read_numbers(log))]
    for step in steps:
        await asyncio.sleep(0)
        log.append_step(step)
        readers.append(asyncio.create_task(read_numbers(log)))
    log.end_log()
    for numbers in await asyncio.gather(*readers):
        assert numbers == list(range(total))


def test_published_entries_are_never_withdrawn() -> None:
    log = EventLog(INITIAL_RESPONSE, "")
    log.withhold(0)
    for step in make_steps():
        log.append_step(step)
    published = []
    for count in (2, 1, 5, 0, 3, None, 4):
        log.publish(count)
        published.append(log.published)
    assert published == [2, 2, 5, 5, 5, len(log.entries), len(log.entries)]


async def test_reader_starts_at_any_index() -> None:
    log = EventLog(INITIAL_RESPONSE, "")
    for step in make_steps():
        log.append_step(step)
    log.end_log()
    for start in range(len(log.entries) + 2):
        assert await read_numbers(log, start) == list(range(start, len(log.entries)))


async def test_step_wakes_a_reader_once() -> None:
    log, batches = EventLog(INITIAL_RESPONSE, ""), []

    async def reader() -> None:
        batches.extend([len(entries) async for entries in log.follow_entries()])

    task = asyncio.create_task(reader())
    for step in make_steps():
        await asyncio.sleep(0.01)
        log.append_step(step)
    log.end_log()
    await task
    assert batches == [len(step) for step in make_steps()]


async def test_several_steps_are_one_callback_and_a_closed_reader_gets_none() -> None:
    log, calls = EventLog(INITIAL_RESPONSE, ""), list[int]()
    steps = make_steps()
    with log.open_reader(0, lambda: calls.append(len(log.entries))) as reader:
        log.append_step(steps[0])
        log.append_step(steps[1])
        assert calls == [], "the writer runs before the callback"
        await asyncio.sleep(0)
        assert (
            calls == [len(log.entries)] and len(reader.take_entries()) == len(log.entries) and not reader.take_entries()
        )
        log.append_step(steps[2])
    await asyncio.sleep(0)
    log.append_step(steps[3])
    await asyncio.sleep(0)
    assert len(calls) == 1


async def test_reader_is_at_end_after_the_last_entry_of_an_ended_log() -> None:
    log = EventLog(INITIAL_RESPONSE, "")
    with log.open_reader(0, lambda: None) as reader:
        log.append_step(make_steps()[0])
        log.end_log()
        assert not reader.at_end
        reader.take_entries()
        assert reader.at_end


async def test_cancelled_reader_does_not_affect_the_others() -> None:
    log, steps = EventLog(INITIAL_RESPONSE, ""), make_steps()
    cancelled, remaining = asyncio.create_task(read_numbers(log)), asyncio.create_task(read_numbers(log))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    for step in steps:
        log.append_step(step)
    log.end_log()
    assert await remaining == list(range(sum(map(len, steps))))


async def test_long_log_is_read_in_batches_of_limited_length() -> None:
    log, machine = EventLog(INITIAL_RESPONSE, ""), create_machine()
    log.append_step(machine.begin())
    for _ in range(3 * MAX_ENTRIES_PER_READ):
        log.append_step(machine.feed(Say("a")))
    log.end_log()
    batches = [entries async for entries in log.follow_entries()]
    assert max(map(len, batches)) == MAX_ENTRIES_PER_READ
    assert [entry for entries in batches for entry in entries] == log.entries


def test_gap_or_repeat_in_the_sequence_numbers_is_rejected() -> None:
    log, steps = EventLog(INITIAL_RESPONSE, ""), make_steps()
    with pytest.raises(RuntimeError, match="event 2 at position 0"):
        log.append_step(steps[1])
    log.append_step(steps[0])
    with pytest.raises(RuntimeError, match="event 0 at position 2"):
        log.append_step(steps[0])


def test_ended_log_accepts_no_step() -> None:
    log = EventLog(INITIAL_RESPONSE, "")
    log.append_step(make_steps()[0])
    log.end_log()
    with pytest.raises(RuntimeError, match="ended"):
        log.append_step(make_steps()[1])
