"""Places of engines for batches: never more turns than the share, first come first served, nothing lost on cancel."""

import asyncio
import random
from typing import cast

import pytest

from antiphon.app.batches.turn_gate import TurnGate
from antiphon.engine.protocol import Engine, EngineStats
from tests.progress import HANG_TIMEOUT_S


class SlotEngine:
    """The part of an engine that the gate reads."""

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs

    def stats(self) -> EngineStats:
        return EngineStats(max_num_seqs=self._max_num_seqs)


def make_engine(max_num_seqs: int) -> Engine:
    return cast("Engine", SlotEngine(max_num_seqs))


@pytest.mark.parametrize(("slots", "places"), [(0, 1), (1, 1), (2, 1), (4, 3), (5, 3), (8, 6), (256, 192)])
def test_a_quarter_of_the_slots_stays_free(slots: int, places: int) -> None:
    assert TurnGate(0.75).count_places(make_engine(slots)) == places
    assert TurnGate(1.0).count_places(make_engine(slots)) == max(slots, 1)


async def test_turns_never_exceed_the_places() -> None:
    gate, engine, dice = TurnGate(0.75), make_engine(8), random.Random(1)
    open_turns = 0
    largest = 0

    async def run_line(count: int) -> None:
        nonlocal open_turns, largest
        await gate.acquire(engine, count)
        open_turns += count
        largest = max(largest, open_turns)
        assert open_turns <= 6 or open_turns == count
        await asyncio.sleep(dice.random() / 200)
        open_turns -= count
        gate.release(engine, count)

    tasks = [asyncio.create_task(run_line(dice.choice([1, 1, 2, 3, 9]))) for _ in range(100)]
    async with asyncio.timeout(HANG_TIMEOUT_S):
        await asyncio.gather(*tasks)
    assert open_turns == 0 and largest >= 6


async def test_a_large_line_is_not_overtaken() -> None:
    gate, engine = TurnGate(0.75), make_engine(8)
    await gate.acquire(engine, 4)
    large, small = (asyncio.create_task(gate.acquire(engine, count)) for count in (4, 1))
    await asyncio.sleep(0)
    assert not large.done() and not small.done()
    gate.release(engine, 4)
    await asyncio.gather(large, small)


async def test_a_cancelled_line_gives_its_places_back() -> None:
    gate, engine = TurnGate(0.75), make_engine(4)
    await gate.acquire(engine, 3)
    waiting = [asyncio.create_task(gate.acquire(engine, 3)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    await asyncio.sleep(0)
    assert not waiting[1].done()  # the one that was cancelled held nothing
    gate.release(engine, 3)  # grants the second one in the same iteration in which it is cancelled
    waiting[1].cancel()
    await asyncio.wait(waiting[1:2])
    async with asyncio.timeout(HANG_TIMEOUT_S):
        await waiting[2]
    last = asyncio.create_task(gate.acquire(engine, 1))
    await asyncio.sleep(0.01)
    assert not last.done()  # the three places are held once, neither more nor less
    gate.release(engine, 3)
    await last


async def test_engines_do_not_wait_for_each_other() -> None:
    gate, engines = TurnGate(0.75), (make_engine(4), make_engine(4))
    await gate.acquire(engines[0], 3)
    blocked = asyncio.create_task(gate.acquire(engines[0], 1))
    await asyncio.sleep(0)
    async with asyncio.timeout(HANG_TIMEOUT_S):
        await gate.acquire(engines[1], 3)
    gate.release(engines[0], 3)
    await blocked
