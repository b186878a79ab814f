"""An engine that is loaded when it is needed, and unloaded when it is not.

A model is in use from the arrival of a request to the end of its job: a job in the engine, a job that waits for the
model, and an update of its adapters all count. Only a model that is not in use is unloaded, so no job ever ends because
of it. While it is unloaded, its properties stay known.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import structlog
from msgspec import structs

from antiphon.app.models.memory_pool import ModelMemory, ModelMemoryPool
from antiphon.app.models.use_count import UseCounter, add_totals
from antiphon.app.registry.engine_wrapper import EngineWrapper
from antiphon.engine.errors import LoadError
from antiphon.engine.process.jobs.pending import unavailable_error
from antiphon.engine.protocol import (
    BATCH_PRIORITY,
    CANCELLED_WHILE_WAITING,
    Engine,
    EngineError,
    EngineInfo,
    EngineStats,
    Job,
    OnChunk,
    overloaded_error,
)

LoadState = Literal["unloaded", "loading", "loaded", "unloading", "closed"]

NOT_RUNNING_MESSAGE = "the engine is not running"

_log = structlog.get_logger(__name__)


class OnDemandEngine(EngineWrapper):
    """Loads `inner` at the start or, with `on_demand`, at its first use. Its memory belongs to `pool`.

    `idle_unload_s` is the time after the last use after which it is unloaded; None: it stays. `static_info` holds the
    properties that are known before it is loaded.
    """

    def __init__(
        self,
        inner: Engine,
        pool: ModelMemoryPool,
        name: str,
        *,
        on_demand: bool = False,
        idle_unload_s: float | None = None,
        memory: ModelMemory = ModelMemory(),  # noqa: B008  # it is frozen
        static_info: EngineInfo | None = None,
    ) -> None:
        self.inner, self.name, self.memory, self.needed_bytes = inner, name, memory, memory.needed
        self._pool, self._on_demand, self._idle_unload_s = pool, on_demand, idle_unload_s
        self.load_state: LoadState = "unloaded"
        self.reserved_bytes = 0
        self.last_use = 0
        """Number of the latest use, from the pool's count."""
        self.num_loads = self.num_unloads = 0
        self.is_starting = False
        """True if the model is being loaded at the start of the server."""
        self._num_batch_jobs = 0
        self._uses = UseCounter(pool.timeouts.min_stay_s, idle_unload_s, pool.notify_change, self._on_idle)
        self._info = static_info
        self._past = EngineStats()
        self._load_task: asyncio.Task[None] | None = None
        self._has_room: asyncio.Future[None] | None = None
        self._unload_task: asyncio.Task[None] | None = None
        self._failure: EngineError | None = None
        self._waiting: dict[str, asyncio.Future[None]] = {}
        pool.add_engine(self)

    @property
    def info(self) -> EngineInfo:
        """Properties of the model. Raises `EngineError` if they are not known before it has been loaded once."""
        if self.load_state == "loaded":
            return self.inner.info
        if self._info is None:
            raise unavailable_error(f"the model {self.name} is not loaded yet")
        return self._info

    @property
    def can_leave(self) -> bool:
        """True if the model is loaded, not in use, and was not in use a moment ago."""
        return self.load_state == "loaded" and self._uses.has_left

    def unready_reason(self) -> str | None:
        """Returns the reason why a job would have to wait; None if it would not."""
        if self.load_state == "loaded":
            return self.inner.unready_reason()
        if self.load_state == "loading":
            has_room = self._has_room is not None and self._has_room.done()
            return self.inner.unready_reason() or "loading" if has_room else "waiting for memory"
        return NOT_RUNNING_MESSAGE if self.load_state == "closed" else "not loaded"

    def blocked_reason(self) -> str | None:
        """Returns the reason why the model is not ready. That a request would have to load it is not one."""
        if self.load_state == "loaded":
            return self.inner.unready_reason()
        return self.unready_reason() if self.is_starting else None

    def capacity(self) -> int:
        """Returns the maximum number of jobs, waiting ones included."""
        return self.inner.capacity()

    def stats(self) -> EngineStats:
        """Returns the current counts. Totals include those of earlier loads."""
        return add_totals(self._past, self.inner.stats()) if self.load_state == "loaded" else self._past

    async def start(self) -> None:
        """Loads the model, unless it waits for its first use or the memory is full. Raises `LoadError`."""
        if self._on_demand or not self._pool.reserve_free_memory(self):
            _log.info("model is loaded at its first use", model=self.name)
            return
        self.is_starting, task = True, self._begin_load(has_room=True)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `close`
                raise unavailable_error(NOT_RUNNING_MESSAGE) from None
            raise
        finally:
            self.is_starting = False

    async def close(self) -> None:
        """Ends every job in flight and frees all resources. The model is not loaded again."""
        self.load_state = "closed"
        self._uses.cancel_timers()
        if self._load_task is not None:
            self._load_task.cancel()
        await self.inner.close()
        for task in (self._load_task, self._unload_task):
            if task is not None:
                await asyncio.wait({task})
        self.reserved_bytes = 0
        self._pool.notify_change()

    async def wait_ready(self) -> None:
        """Returns as soon as a job would be accepted, which may then wait for the load. Raises `EngineError`.

        The properties of the model are known then.
        """
        if self._uses.count - self._num_batch_jobs >= self.capacity():
            raise overloaded_error()
        with self._use():
            if self._info is None:
                if self.is_starting:
                    await self.inner.wait_ready()  # which has a limit of its own for the start
                await self._ensure_loaded()
            elif self.load_state != "loaded":
                await self._ensure_loaded(until_room=True)
            if self.load_state == "loaded":
                await self.inner.wait_ready()

    @contextlib.asynccontextmanager
    async def keep_loaded(self) -> AsyncIterator[None]:
        """Loads the model, and keeps it loaded during the block. Raises `EngineError`."""
        with self._use():
            await self._ensure_loaded()
            yield

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Runs a job; loads the model first if necessary. The job's deadline counts from now."""
        loop = asyncio.get_running_loop()
        expires = None if job.deadline is None else loop.time() + job.deadline
        is_batch = job.priority <= BATCH_PRIORITY
        with self._use():
            self._num_batch_jobs += is_batch
            try:
                if self.load_state != "loaded":
                    await self._wait_for_load(job)
                    if expires is not None:
                        job = structs.replace(job, deadline=max(expires - loop.time(), 0.0))
                await self.inner.generate(job, on_chunk)
            finally:
                self._num_batch_jobs -= is_batch

    async def cancel(self, job_id: str) -> None:
        """Ends a job. Unknown ids are ignored."""
        if job_id in self._waiting:
            self._waiting[job_id].cancel()
        else:
            await self.inner.cancel(job_id)

    async def unload(self, why: str) -> None:
        """Unloads the model if it is not in use. Its properties and counts are kept."""
        if self.load_state == "loaded" and not self._uses.count:
            await asyncio.shield(self._begin_unload(why))

    def _begin_unload(self, why: str) -> "asyncio.Task[None]":
        self._info, self._past = self.inner.info, add_totals(self.stats(), EngineStats())
        self.load_state = "unloading"
        self._uses.cancel_timers()
        self._unload_task = asyncio.create_task(self._close_inner(why), name=f"unload-{self.name}")
        return self._unload_task

    async def _close_inner(self, why: str) -> None:
        try:
            await self.inner.close()
        finally:
            self.reserved_bytes = 0
            if self.load_state == "unloading":
                self.load_state = "unloaded"
                self.num_unloads += 1
                _log.info("model unloaded", model=self.name, reason=why)
            self._pool.notify_change()

    @contextlib.contextmanager
    def _use(self) -> Iterator[None]:
        """Marks the model as used during the block. Afterwards, the time until it is unloaded starts."""
        self.last_use = self._pool.next_use()
        with self._uses.hold():
            yield

    def _on_idle(self) -> None:
        if self.load_state == "loaded" and not self._uses.count:
            self._begin_unload(f"not used for {self._idle_unload_s:g} s")

    # Loading

    async def _wait_for_load(self, job: Job) -> None:
        """Waits until the model is loaded, at most until the job's deadline, or until the job is cancelled."""
        cancelled = self._waiting[job.id] = asyncio.get_running_loop().create_future()
        loading = asyncio.create_task(self._ensure_loaded(), name=f"wait-{self.name}")
        try:
            await asyncio.wait({loading, cancelled}, timeout=job.deadline, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
            elif cancelled.done():
                raise EngineError.from_fault(CANCELLED_WHILE_WAITING)
            else:
                reason = f"the job did not start in time: {self.unready_reason()}"
                raise EngineError("deadline_exceeded", reason, retryable=True)
        finally:
            del self._waiting[job.id]
            cancelled.cancel()
            loading.cancel()

    async def _ensure_loaded(self, *, until_room: bool = False) -> None:
        """Waits until the model is loaded, or `until_room`: until it has its memory, so that only its load is missing.

        Raises `EngineError`, which does not say more than a client may read.
        """
        while self.load_state == "unloading" and self._unload_task is not None:
            await asyncio.shield(self._unload_task)
        if self.load_state == "loaded":
            return
        if self.load_state == "closed":
            raise unavailable_error(NOT_RUNNING_MESSAGE)
        if self._failure is not None:
            raise self._failure
        task = self._load_task or self._begin_load(has_room=False)
        awaited = {task, self._has_room} if until_room and self._has_room is not None else {task}
        timeout_s = self._pool.timeouts.load_timeout_s
        done, _ = await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise unavailable_error(f"the model {self.name} is still being loaded ({self.unready_reason()})")
        if task not in done:
            return
        if task.cancelled():
            raise unavailable_error(NOT_RUNNING_MESSAGE)
        error = task.exception()
        if isinstance(error, LoadError):
            raise _load_failed(self.name)
        if error is not None:
            raise error

    def _begin_load(self, *, has_room: bool) -> "asyncio.Task[None]":
        self.load_state = "loading"
        self._has_room = asyncio.get_running_loop().create_future()
        self._load_task = asyncio.create_task(self._load(has_room=has_room), name=f"load-{self.name}")
        self._load_task.add_done_callback(self._on_load_end)
        return self._load_task

    async def _load(self, *, has_room: bool) -> None:
        if not has_room:
            await self._pool.make_room(self)
            if not self._uses.count:  # all clients have left meanwhile
                raise EngineError.from_fault(CANCELLED_WHILE_WAITING)
        if self._has_room is not None:
            self._has_room.set_result(None)
        await self.inner.start()
        try:
            self._info = self.inner.info
            self._pool.settle_memory(self)
        except LoadError:
            await self.inner.close()
            raise

    def _on_load_end(self, task: "asyncio.Task[None]") -> None:
        self._load_task = None
        error = None if task.cancelled() else task.exception()
        if self.load_state != "loading":  # closed meanwhile
            return
        if error is None and not task.cancelled():
            self.load_state, self._failure = "loaded", None
            self.num_loads += 1
            if not self.is_starting:  # the start reports all models together
                _log.info("model loaded", model=self.name)
            self._uses.start_timers()
        else:
            self.load_state, self.reserved_bytes = "unloaded", 0
            if isinstance(error, LoadError) and not self.is_starting:
                self._note_failure(error)
        self._pool.notify_change()

    def _note_failure(self, error: LoadError) -> None:
        """Makes requests of the next seconds fail at once. The log has the reason: it names files of the machine."""
        _log.error("model could not be loaded", model=self.name, error=error.message)
        self._failure = _load_failed(self.name)
        asyncio.get_running_loop().call_later(self._pool.timeouts.retry_delay_s, setattr, self, "_failure", None)


def _load_failed(name: str) -> EngineError:
    return unavailable_error(f"the model {name} could not be loaded; see the server's log")
