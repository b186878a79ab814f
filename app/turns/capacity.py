"""Counts open turns against the capacity of each engine.

An engine decides how many turns it accepts, but it sees a job only after the prompt was rendered. In a burst that is
too late, so every earlier check uses this count.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from antiphon.app.errors import ApiError, from_engine
from antiphon.engine.protocol import BATCH_PRIORITY, Engine, overloaded_error

SLOT_RETRY_DELAY_S = 0.5
"""Pause between two attempts to get a slot for a turn whose client has its answer already."""


class TurnSlot:
    """One slot of an engine, held from before the prompt is rendered until the turn has ended."""

    def __init__(self, open_turns: Counter[Engine], engine: Engine) -> None:
        self._open_turns, self._engine = open_turns, engine
        self._is_held = True
        self.on_release: Callable[[], None] | None = None
        """Called when the slot is freed."""
        open_turns[engine] += 1

    def release(self) -> None:
        """Frees the slot. Only the first call has an effect."""
        if self._is_held:
            self._is_held = False
            self._open_turns[self._engine] -= 1
            if self.on_release is not None:
                self.on_release()


class TurnCapacity:
    """Free slots of these engines."""

    def __init__(self, engines: Iterable[Engine]) -> None:
        self._engines = tuple(engines)
        self._open_turns: Counter[Engine] = Counter()
        self._batch_turns: Counter[Engine] = Counter()
        self.count_left: Callable[[], int] = lambda: 0
        """Returns the number of turns that end as soon as others need their slots."""

    def acquire(self, engine: Engine, count: int = 1, priority: int = 0) -> list[TurnSlot]:
        """Takes `count` slots of the engine, all or none. Raises `ApiError` 429.

        Turns of `BATCH_PRIORITY` or a lower one leave all slots to the others: see `is_full`.
        """
        self.check(engine, count, priority)
        open_turns = self._batch_turns if priority <= BATCH_PRIORITY else self._open_turns
        return [TurnSlot(open_turns, engine) for _ in range(count)]

    async def wait_slot(self, engine: Engine, priority: int) -> TurnSlot:
        """Returns a slot of the engine as soon as one is free."""
        while True:
            try:
                return self.acquire(engine, 1, priority)[0]
            except ApiError:
                await asyncio.sleep(SLOT_RETRY_DELAY_S)

    def check(self, engine: Engine, count: int = 1, priority: int = 0) -> None:
        """Raises `ApiError` 429 if the engine lacks capacity for `count` more turns of this priority."""
        free = self.free_slots(engine) - (self._batch_turns[engine] if priority <= BATCH_PRIORITY else 0)
        if free < count:
            raise from_engine(overloaded_error())

    def check_any(self) -> None:
        """Raises `ApiError` 429 if no engine can take a turn. Used before the body that names the model is parsed."""
        if self._engines and not self.total_free_slots():
            raise from_engine(overloaded_error())

    def free_slots(self, engine: Engine) -> int:
        """Returns the number of further turns that the engine can take, those of batches not counted.

        It is negative if the capacity has shrunk.
        """
        return engine.capacity() - self._open_turns[engine]

    def open_turns(self, engine: Engine) -> int:
        """Returns the number of turns of the engine that have not ended, waiting ones included."""
        return self._open_turns[engine] + self._batch_turns[engine]

    def total_free_slots(self) -> int:
        """Returns the number of further turns that all engines together can take."""
        return sum(max(self.free_slots(engine), 0) for engine in self._engines) + self.count_left()
