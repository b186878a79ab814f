"""Places of engines for lines of batches, which leave a part of each engine's slots to other requests."""

import asyncio
from collections import Counter, deque
from collections.abc import Iterable

from msgspec import structs

from antiphon.app.registry.model_registry import NamedModel
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.engine.protocol import BATCH_PRIORITY, Engine

UNKNOWN_MODEL_PLACES = 4
"""Lines at once whose model does not exist: they end with an error."""


class TurnGate:
    """Limits the turns of all batches on each engine to `slot_share` of its slots, but to at least one.

    A line may need several, for several choices or prompts.
    """

    def __init__(self, slot_share: float) -> None:
        self._slot_share = slot_share
        self._open: Counter[Engine] = Counter()
        self._waiting: deque[tuple[Engine, int, asyncio.Future[None]]] = deque()

    async def acquire(self, engine: Engine, count: int) -> None:
        """Waits until `count` turns may run, or until no other turn of a batch runs."""
        is_first = all(other is not engine or granted.done() for other, _, granted in self._waiting)
        if is_first and self._has_place(engine, count):
            self._open[engine] += count
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((engine, count, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.release(engine, count)
            raise

    def count_places(self, engine: Engine) -> int:
        """Returns the number of turns of batches that an engine may run now."""
        return max(int(engine.stats().max_num_seqs * self._slot_share), 1)

    def release(self, engine: Engine, count: int) -> None:
        """Ends turns, and lets those that wait begin, in the order of their arrival."""
        self._open[engine] -= count
        blocked: set[Engine] = set()
        for entry in list(self._waiting):
            waiting_engine, waiting_count, granted = entry
            if granted.done():
                self._waiting.remove(entry)
            elif waiting_engine not in blocked and self._has_place(waiting_engine, waiting_count):
                self._waiting.remove(entry)
                self._open[waiting_engine] += waiting_count
                granted.set_result(None)
            else:
                blocked.add(waiting_engine)

    def _has_place(self, engine: Engine, count: int) -> bool:
        return not self._open[engine] or self._open[engine] + count <= self.count_places(engine)


class LinePermit:
    """Passes a line's turns through the gate, at the priority of batches. It is released when the line has ended."""

    def __init__(self, gate: TurnGate) -> None:
        self._gate = gate
        self._held: list[tuple[Engine, int]] = []

    async def admit(self, model: NamedModel, specs: Iterable[TurnSpec]) -> tuple[TurnSpec, ...]:
        """Waits for the places of these turns. Returns them with their priority."""
        specs = tuple(specs)
        count = sum(spec.n for spec in specs)
        await self._gate.acquire(model.engine, count)
        self._held.append((model.engine, count))
        if not model.engine.info.capabilities.priority:
            return specs
        return tuple(structs.replace(spec, priority=min(spec.priority, BATCH_PRIORITY)) for spec in specs)

    def release(self) -> None:
        """Gives the places back."""
        for engine, count in self._held:
            self._gate.release(engine, count)
        self._held.clear()
