"""The memory that all models of a server share: which of them are loaded, and which leave to make room for another.

A model reserves the memory it needs before it is loaded, and gives it back when it is unloaded. If there is not enough,
models that are not in use are unloaded, the least recently used first. If all are in use, the load waits.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Protocol

from msgspec import Struct

from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import EngineError

GIB = 2**30


class PoolTimeouts(Struct, frozen=True, kw_only=True):
    """Time limits of loading, in seconds."""

    load_timeout_s: float = 600.0
    """Time that a request waits until its model is loaded."""
    room_timeout_s: float = 30.0
    """Time that a load waits for memory that models in use hold."""
    min_stay_s: float = 2.0
    """Time after its last use in which a model is not unloaded, so that two models cannot displace each other before
    either has served a request."""
    retry_delay_s: float = 10.0
    """Time after a failed load in which requests get its error, without another attempt."""


class ModelMemory(Struct, frozen=True):
    """The memory of a model: what it is expected to take, and how much of that only as it is used, in bytes."""

    needed: int = 0
    growth: int = 0
    measure: Callable[[], int | None] = lambda: None
    """Returns what the model takes once it is loaded; None if that is unknown."""


class PooledModel(Protocol):
    """A model as the pool sees it. `needed_bytes` is what a load would reserve, `reserved_bytes` what it holds now."""

    name: str
    memory: ModelMemory
    needed_bytes: int
    reserved_bytes: int
    last_use: int

    @property
    def can_leave(self) -> bool:
        """True if the model is loaded and may be unloaded now."""
        ...

    async def unload(self, why: str) -> None:
        """Unloads the model, which is not in use."""
        ...


class ModelMemoryPool:
    """Reserves memory for models. `memory_bytes` is the limit of all together; None for no limit."""

    def __init__(self, memory_bytes: int | None = None, timeouts: PoolTimeouts = PoolTimeouts()) -> None:  # noqa: B008  # it is frozen
        self.memory_bytes, self.timeouts = memory_bytes, timeouts
        self._engines: list[PooledModel] = []
        self._uses = count(1)
        self._turnstile = asyncio.Lock()
        """Held by the load that waits for memory. Loads get it in order of arrival, so that none starves."""
        self._changed = asyncio.Event()
        self._relief: asyncio.Task[None] | None = None

    def add_engine(self, engine: PooledModel) -> None:
        """Adds an engine, which shares the memory from now on."""
        self._engines.append(engine)

    def next_use(self) -> int:
        """Returns a number that is larger than those of all earlier uses of models."""
        return next(self._uses)

    def notify_change(self) -> None:
        """Handles a model that is not in use any more, or takes more or less memory than before."""
        self._changed.set()
        is_over = self.memory_bytes is not None and self.reserved_bytes > self.memory_bytes
        if is_over and (self._relief is None or self._relief.done()):
            self._relief = asyncio.create_task(self._unload_excess(), name="unload-excess")

    @property
    def reserved_bytes(self) -> int:
        """Memory that the loaded models take."""
        return sum(engine.reserved_bytes for engine in self._engines)

    def reserve_free_memory(self, engine: PooledModel) -> bool:
        """Reserves memory for a model if there is enough. Returns whether there is."""
        need = self._limit(engine.needed_bytes)
        if self.memory_bytes is not None and self.reserved_bytes + need > self.memory_bytes:
            return False
        engine.reserved_bytes = need
        return True

    async def make_room(self, engine: PooledModel) -> None:
        """Reserves memory for a model; unloads others if there is too little. Raises `EngineError` after a timeout."""
        try:
            async with asyncio.timeout(self.timeouts.room_timeout_s), self._turnstile:
                while not self.reserve_free_memory(engine):
                    self._changed.clear()
                    victim = self._choose_victim(self._limit(engine.needed_bytes))
                    if victim is not None:
                        await victim.unload(f"to make room for {engine.name}")
                    else:
                        await self._changed.wait()
        except TimeoutError:
            holders = ", ".join(other.name for other in self._engines if other.reserved_bytes)
            message = f"the model {engine.name} does not fit into the memory beside models that are in use ({holders})"
            raise EngineError("engine_unavailable", f"{message}; try again later", retryable=True) from None

    def settle_memory(self, engine: PooledModel) -> None:
        """Replaces the estimate of a model's memory by what it takes, if that is known, and what it may still take.

        Raises `LoadError` if it takes more than the limit by itself.
        """
        resident = engine.memory.measure()
        if resident is None:
            return
        if self.memory_bytes is not None and resident > self.memory_bytes:
            message = f"{engine.name} takes {resident / GIB:.2f} GiB, and --memory-gib is {self.memory_bytes / GIB:g}"
            raise LoadError(f"{message}; raise it, or choose a smaller form with --quantization")
        engine.needed_bytes = resident + engine.memory.growth
        engine.reserved_bytes = self._limit(engine.needed_bytes)

    async def _unload_excess(self) -> None:
        """Unloads models that are not in use, because the loaded ones take more than was expected, beyond the limit."""
        async with self._turnstile:
            while (victim := self._least_recent()) is not None and self.reserved_bytes > (self.memory_bytes or 0):
                await victim.unload("because another model takes more memory than expected")

    def _least_recent(self) -> PooledModel | None:
        """Returns the least recently used of the models that are not in use; None if there is none."""
        return min(
            (engine for engine in self._engines if engine.can_leave), key=lambda each: each.last_use, default=None
        )

    def _choose_victim(self, need: int) -> PooledModel | None:
        """Returns the least recently used model that is not in use; None if unloading all of these is not enough."""
        reclaimable = sum(engine.reserved_bytes for engine in self._engines if engine.can_leave)
        if self.memory_bytes is None or self.reserved_bytes - reclaimable + need > self.memory_bytes:
            return None
        return self._least_recent()

    def _limit(self, need: int) -> int:
        """Returns the need of a model, at most the whole memory: an estimate that is too high must not bar it."""
        return need if self.memory_bytes is None else min(need, self.memory_bytes)
