"""The torch engine as the server sees it: its process is begun, watched, and begun again when it dies.

Nothing here imports torch. A job goes to the process in one message; a step of the process comes back in one, wakes the
event loop once and is dealt out to the streams. When the process dies, hangs or gives up, the jobs it had are ended
with a fault, and those that come meanwhile wait for the next one, within bounds.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable
from pathlib import Path

import msgspec

from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.connection import WorkerConnection
from antiphon.engine.process.messages import (
    AddJob,
    CancelJob,
    LoadProgress,
    Report,
    StartCommand,
    StepReport,
    WorkerFailed,
    WorkerReady,
)
from antiphon.engine.process.pending import CANCELLED_WHILE_WAITING, PendingJob
from antiphon.engine.process.spawn import SpawnWorker, WorkerProcess
from antiphon.engine.protocol import (
    EngineError,
    EngineInfo,
    EngineStats,
    Fault,
    Job,
    JobChunk,
    OnChunk,
    overloaded_error,
)

log = logging.getLogger(__name__)

DEFAULT_CORE_FACTORY = "antiphon.engine.process.worker:build_torch_core"
NOT_RUNNING = "the engine is not running"
ENGINE_STOPPED = Fault("engine_unavailable", "the engine was stopped", retryable=True)
DEFAULT_CAPACITY = 256
"""How many jobs may wait for an engine that has not said yet how many it takes."""


class WorkerTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long what may take, in seconds."""

    step_timeout: float = 120.0
    """A process that is silent for so long has hung: it is killed. A step must take less."""
    load_timeout: float = 1800.0
    """The same while it loads: no stage of loading may take longer."""
    wait_timeout: float = 30.0
    """A job waits so long for an engine that loads or is restarted."""
    min_restart_delay: float = 0.1
    """Before the first restart; doubled for every one that served nothing."""
    max_restart_delay: float = 30.0


class ProcessEngine:
    """Serves the model of ``folder``; with these options.

    ``build`` says what makes the core in the process (see ``engine.process.messages.Start``); ``spawn`` begins the
    process; ``told`` hears of every stage and trouble in a few words.
    """

    def __init__(
        self,
        folder: str | Path = "",
        options: EngineOptions | None = None,
        *,
        core_factory: str = DEFAULT_CORE_FACTORY,
        timeouts: WorkerTimeouts | None = None,
        spawn: SpawnWorker = WorkerProcess,
        on_status: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._start = StartCommand(core_factory, str(Path(folder).expanduser().absolute()), options or EngineOptions())
        self._timeouts, self._spawn, self._on_status = timeouts or WorkerTimeouts(), spawn, on_status
        self._info: EngineInfo | None = None
        self._unready_reason: str | None = NOT_RUNNING
        self._failure_suffix = ""
        """What is said behind an obstacle: what went wrong before."""
        self._capacity = DEFAULT_CAPACITY
        self._stats = EngineStats()
        self._has_served = False
        self._connection: WorkerConnection | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._first_load: asyncio.Future[None] | None = None
        self._jobs: dict[str, PendingJob | None] = {}
        """What the process works on; None where the caller has left and the process has not yet said the end."""
        self._waiters: dict[Hashable, asyncio.Future[None]] = {}

    @property
    def info(self) -> EngineInfo:
        """What is fixed about the model; raises ``engine_unavailable`` until it was loaded for the first time."""
        if self._info is None:
            raise _unavailable_error(self._unready_reason or NOT_RUNNING)
        return self._info

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self._connection.worker.pid if self._connection else None

    def unready_reason(self) -> str | None:
        """What a job would have to wait for; None: nothing."""
        return self._unready_reason

    def capacity(self) -> int:
        """The slots and the queue; while the model loads for the first time, a guess."""
        return self._capacity

    def stats(self) -> EngineStats:
        """Counts after the latest step; all zero while there is no model."""
        return self._stats

    async def start(self) -> None:
        """Load the model. Raises :class:`LoadError` with one line for a person."""
        if self._supervisor is not None:
            return
        loop = asyncio.get_running_loop()
        self._failure_suffix = ""
        self._first_load = loop.create_future()
        self._supervisor = loop.create_task(self._supervise(self._first_load), name="engine-supervisor")
        self._set_status("loading")
        await self._first_load

    async def close(self) -> None:
        """End every job in flight and the process."""
        life, self._supervisor = self._supervisor, None
        if life is None:
            return
        life.cancel()
        await asyncio.wait({life})
        if self._connection is not None:
            await self._connection.close()
        self._connection, self._info, self._failure_suffix = None, None, ""
        self._stop_serving()

    async def wait_ready(self) -> None:
        """Return when a job would be taken. Raises :class:`EngineError` like :meth:`generate`."""
        await self._wait_for_capacity(object(), None)

    async def cancel(self, job_id: str) -> None:
        """End a job before the next step."""
        if job_id in self._waiters:
            _resolve(
                self._waiters[job_id],
                EngineError(
                    CANCELLED_WHILE_WAITING.code, CANCELLED_WHILE_WAITING.message, CANCELLED_WHILE_WAITING.retryable
                ),
            )
        elif job_id in self._jobs and self._connection is not None:
            self._connection.send(CancelJob(job_id))

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Have the process work on a job. One that it lost before it admitted it is sent to the next process, once."""
        if job.id in self._jobs or job.id in self._waiters:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        expires = None if job.deadline is None else asyncio.get_running_loop().time() + job.deadline
        hearing = await self._run_job(job, on_chunk, expires)
        if hearing.lost:
            hearing = await self._run_job(job, on_chunk, expires)
        if (refusal := hearing.rejection) is not None:
            raise EngineError(refusal.code, refusal.message, refusal.retryable)

    async def _run_job(self, job: Job, hear: OnChunk, expires: float | None) -> PendingJob:
        """Send the job as soon as it would be taken, and wait for its end."""
        await self._wait_for_capacity(job.id, expires)
        if self._connection is None:
            raise _unavailable_error(NOT_RUNNING)
        if expires is not None:
            job = msgspec.structs.replace(job, deadline=expires - asyncio.get_running_loop().time())
        hearing = self._jobs[job.id] = PendingJob(hear)
        self._connection.send(AddJob(job))
        try:
            await hearing.done
        finally:
            if self._jobs.get(job.id) is hearing:  # the process still works on it
                await self.cancel(job.id)
                self._jobs[job.id] = None
        return hearing

    async def _wait_for_capacity(self, key: Hashable, expires: float | None) -> None:
        """Wait, if need be, until the engine would take a job, but not past ``expires`` on the loop's clock."""
        loop = asyncio.get_running_loop()
        patient = loop.time() + self._timeouts.wait_timeout
        until = patient if expires is None else min(expires, patient)
        while self._unready_reason is not None:
            if self._supervisor is None:
                raise _unavailable_error(self._unready_reason)
            if len(self._waiters) >= self._capacity:
                raise overloaded_error()
            self._waiters[key] = waiter = loop.create_future()
            try:
                async with asyncio.timeout_at(until):
                    await waiter
            except TimeoutError:
                if until == expires:
                    raise EngineError("deadline_exceeded", f"not done in time: {self._unready_reason}", True) from None
                raise _unavailable_error(self._unready_reason or NOT_RUNNING) from None
            finally:
                del self._waiters[key]
        if len(self._jobs) >= self._capacity:
            raise overloaded_error()

    # The process: begun, heard, lost, begun again

    async def _supervise(self, first: "asyncio.Future[None]") -> None:
        """One process after the other. If the first cannot load, there is no second."""
        pause, tries = self._timeouts.min_restart_delay, 0
        while True:
            reason = await self._run_worker()
            if self._info is None:
                self._supervisor = None
                _resolve(first, LoadError(reason))
                self._stop_serving()
                return
            if self._has_served:
                self._has_served, pause, tries = False, self._timeouts.min_restart_delay, 0
            tries += 1
            log.warning("the engine stopped: %s; try %d to restart it in %g s", reason, tries, pause)
            self._failure_suffix = f", after it stopped: {reason}"
            fault = Fault("engine_unavailable", f"the engine stopped ({reason}) and is being restarted", retryable=True)
            self._fail_jobs(fault, f"restarting: try {tries} in {pause:g} s")
            await asyncio.sleep(pause)
            self._set_status("loading")
            pause = min(2 * pause, self._timeouts.max_restart_delay)

    async def _run_worker(self) -> str:
        """One process, from its first word to its end: why it ended."""
        opening = asyncio.create_task(
            WorkerConnection.spawn_worker(self._spawn, self._on_report, self._start), name="engine-connect"
        )
        try:
            link = self._connection = await asyncio.shield(opening)
        except OSError as error:
            return f"no process could be begun: {error}"
        except asyncio.CancelledError:
            self._connection = await opening  # so that it can be closed
            raise
        watch = asyncio.create_task(
            link.run_watchdog(step_timeout=self._timeouts.step_timeout, load_timeout=self._timeouts.load_timeout),
            name="engine-watchdog",
        )
        try:
            return await asyncio.shield(link.exit_reason)
        finally:
            watch.cancel()

    def _on_report(self, report: Report) -> None:
        """In the event loop, as messages come."""
        if isinstance(report, StepReport):
            self._stats = report.stats
            self._dispatch_chunks(report.chunks)
        elif isinstance(report, WorkerFailed) and self._info is not None:
            self._failure_suffix = ""
            self._set_status(f"stopping: {report.reason}")
        elif isinstance(report, LoadProgress):
            self._set_status(f"loading: {report.text}")
        elif isinstance(report, WorkerReady):
            self._info, self._capacity = report.info, report.max_num_seqs + report.max_waiting
            self._stats, self._failure_suffix = EngineStats(slots=report.max_num_seqs), ""
            self._set_status(None)
            for waiter in self._waiters.values():
                _resolve(waiter)
            if self._first_load is not None:
                _resolve(self._first_load)

    def _dispatch_chunks(self, said: tuple[JobChunk, ...]) -> None:
        """Hand each chunk to who hears it; those that have left meanwhile are passed over."""
        for job_id, chunk in said:
            if chunk.finish is None:
                hearing = self._jobs.get(job_id)
            else:
                hearing = self._jobs.pop(job_id, None)
                self._has_served |= chunk.finish in ("stop", "length")
            if hearing is not None:
                hearing.receive_chunk(chunk)

    def _fail_jobs(self, fault: Fault, obstacle: str) -> None:
        """The process is gone: whatever it had in hand ends with this fault."""
        self._set_status(obstacle)
        self._stats = EngineStats()
        jobs, self._jobs = self._jobs, {}
        for hearing in jobs.values():
            if hearing is not None:
                hearing.fail_lost(fault)

    def _stop_serving(self) -> None:
        """There will be no next process."""
        self._fail_jobs(ENGINE_STOPPED, NOT_RUNNING)
        for waiter in (*self._waiters.values(), self._first_load):
            if waiter is not None:
                _resolve(waiter, _unavailable_error(ENGINE_STOPPED.message))

    def _set_status(self, obstacle: str | None) -> None:
        self._unready_reason = obstacle and f"{obstacle}{self._failure_suffix}"
        if self._supervisor is not None:
            self._on_status(self._unready_reason or "ready")


def _unavailable_error(why: str) -> EngineError:
    return EngineError("engine_unavailable", why, retryable=True)


def _resolve(future: "asyncio.Future[None]", error: Exception | None = None) -> None:
    """Wake whoever waits, unless nobody does any more."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
