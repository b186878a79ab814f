"""The parent side of the engine's worker process: spawns it, supervises it, and restarts it when it exits.

This module imports no torch. Each job is sent in one message, and each engine step returns in one, which wakes the
event loop once and is dispatched to its jobs. When the worker exits, hangs or fails, its jobs end with a fault. Jobs
that arrive before the next worker is ready wait for it, up to a limit in number and time.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path

import msgspec

from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.adapters import WorkerAdapters
from antiphon.engine.process.connection import WorkerConnection
from antiphon.engine.process.media import WorkerMedia
from antiphon.engine.process.messages import (
    AdapterReport,
    AddJob,
    CancelJob,
    Command,
    LoadProgress,
    NeedMedia,
    Report,
    StartCommand,
    StepReport,
    WorkerFailed,
    WorkerReady,
)
from antiphon.engine.process.pending import PendingJob, resolve_future, unavailable_error
from antiphon.engine.process.spawn import SpawnWorker, WorkerProcess
from antiphon.engine.process.timeouts import WorkerTimeouts
from antiphon.engine.protocol import (
    CANCELLED_WHILE_WAITING,
    EngineError,
    EngineInfo,
    EngineStats,
    Fault,
    Job,
    JobChunk,
    MediaSource,
    OnChunk,
    is_full,
    overloaded_error,
)

log = logging.getLogger(__name__)

DEFAULT_CORE_FACTORY = "antiphon.engine.process.worker:build_torch_core"
NOT_RUNNING = "the engine is not running"
ENGINE_STOPPED = Fault("engine_unavailable", "the engine was stopped", retryable=True)
DEFAULT_CAPACITY = 256
"""Number of jobs that may wait until the first worker has reported its capacity."""


class ProcessEngine:
    """Engine that serves the model in `folder` from a worker process.

    `core_factory` is a field of `.messages.StartCommand`. `on_status` is called with a short text at every
    loading stage and failure, and with "ready". `spawn` starts the worker.
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
        folder = str(Path(folder).expanduser().absolute())
        self._start_command = StartCommand(core_factory, folder, options or EngineOptions())
        self._timeouts, self._spawn, self._on_status = timeouts or WorkerTimeouts(), spawn, on_status
        self._info: EngineInfo | None = None
        self._unready_reason: str | None = NOT_RUNNING
        self._failure_suffix = ""  # appended to the unready reason: why the previous worker stopped
        self._capacity = DEFAULT_CAPACITY
        self._stats = EngineStats()
        self._media = WorkerMedia()
        self._has_served = False
        self._connection: WorkerConnection | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._first_load: asyncio.Future[None] | None = None
        self.adapters = WorkerAdapters(self._start_command.options, self._send)
        self._jobs: dict[str, PendingJob | None] = {}
        """Jobs in the worker. None if the caller has left, but the worker has not reported the job's end."""
        self._waiters: dict[Hashable, asyncio.Future[None]] = {}

    @property
    def info(self) -> EngineInfo:
        """Fixed properties of the model. Raises `engine_unavailable` until the model has been loaded once."""
        if self._info is None:
            raise unavailable_error(self._unready_reason or NOT_RUNNING)
        return self._info

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None if there is no worker."""
        return self._connection.worker.pid if self._connection else None

    def unready_reason(self) -> str | None:
        """Returns the reason why a job would have to wait; None if it would not."""
        return self._unready_reason

    def capacity(self) -> int:
        """Returns the number of slots plus the length of the queue; a default until the model has been loaded once."""
        return self._capacity

    def stats(self) -> EngineStats:
        """Returns the counts after the latest step; all zero while no model is loaded."""
        return self._stats

    def attach_media(self, source: MediaSource) -> None:
        """Sets the source of the pictures of jobs."""
        self._media.source = source

    async def start(self) -> None:
        """Loads the model. Raises `LoadError` with a one-line message for the operator."""
        if self._supervisor is not None:
            return
        loop = asyncio.get_running_loop()
        self._failure_suffix = ""
        self._first_load = loop.create_future()
        self._supervisor = loop.create_task(self._supervise(self._first_load), name="engine-supervisor")
        self._set_status("loading")
        await self._first_load

    async def close(self) -> None:
        """Ends every job in flight and stops the worker."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        supervisor.cancel()
        await asyncio.wait({supervisor})
        if self._connection is not None:
            await self._connection.close()
        self._connection, self._info, self._failure_suffix = None, None, ""
        self._stop_serving()

    async def wait_ready(self) -> None:
        """Returns as soon as a job would be accepted. Raises `EngineError` like `generate`."""
        await self._wait_for_capacity(object(), None, 0)

    async def cancel(self, job_id: str) -> None:
        """Ends a job before the next step."""
        if job_id in self._waiters:
            resolve_future(self._waiters[job_id], EngineError.from_fault(CANCELLED_WHILE_WAITING))
        elif job_id in self._jobs and self._connection is not None:
            self._connection.send(CancelJob(job_id))

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Runs a job in the worker. A job lost before its admission is sent to the next worker, once."""
        if job.id in self._jobs or job.id in self._waiters:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        expires = None if job.deadline is None else asyncio.get_running_loop().time() + job.deadline
        pending = await self._run_job(job, on_chunk, expires)
        if pending.lost:
            pending = await self._run_job(job, on_chunk, expires)
        if (rejection := pending.rejection) is not None:
            raise EngineError.from_fault(rejection)

    def _send(self, command: Command) -> None:
        if self._connection is None or self._unready_reason is not None:
            raise unavailable_error(self._unready_reason or NOT_RUNNING)
        self._connection.send(command)

    async def _run_job(self, job: Job, on_chunk: OnChunk, deadline_at: float | None) -> PendingJob:
        """Sends the job as soon as the engine has capacity, and waits for its end."""
        await self._wait_for_capacity(job.id, deadline_at, job.priority)
        if self._connection is None:
            raise unavailable_error(NOT_RUNNING)
        if deadline_at is not None:
            job = msgspec.structs.replace(job, deadline=deadline_at - asyncio.get_running_loop().time())
        self._connection.send(AddJob(job))  # before the job is counted: a job that cannot be encoded raises here
        pending = self._jobs[job.id] = PendingJob(on_chunk, job.priority)
        self._media.add_job(job)
        try:
            await pending.done
        finally:
            self._media.remove_job(job.id)
            if self._jobs.get(job.id) is pending:  # the worker still runs it
                await self.cancel(job.id)
                self._jobs[job.id] = None
        return pending

    async def _wait_for_capacity(self, key: Hashable, deadline_at: float | None, priority: int) -> None:
        """Waits until the engine can accept a job of this priority, at most until `deadline_at` (event loop time)."""
        loop = asyncio.get_running_loop()
        timeout_at = loop.time() + self._timeouts.wait_timeout
        until = timeout_at if deadline_at is None else min(deadline_at, timeout_at)
        while self._unready_reason is not None:
            if self._supervisor is None:
                raise unavailable_error(self._unready_reason)
            if len(self._waiters) >= self._capacity:
                raise overloaded_error()
            self._waiters[key] = waiter = loop.create_future()
            try:
                async with asyncio.timeout_at(until):
                    await waiter
            except TimeoutError:
                if until == deadline_at:
                    raise EngineError(
                        "deadline_exceeded", f"the job did not start in time: {self._unready_reason}", True
                    ) from None
                raise unavailable_error(self._unready_reason or NOT_RUNNING) from None
            finally:
                del self._waiters[key]
        open_jobs = [0 if pending is None else pending.priority for pending in self._jobs.values()]
        if is_full(self._capacity, open_jobs, priority):
            raise overloaded_error()

    # Supervision of the worker

    async def _supervise(self, first_load: "asyncio.Future[None]") -> None:
        """Runs one worker after another. Stops if the first one fails to load the model."""
        delay, attempts = self._timeouts.min_restart_delay, 0
        while True:
            reason = await self._run_worker()
            if self._info is None:
                self._supervisor = None
                resolve_future(first_load, LoadError(reason))
                self._stop_serving()
                return
            if self._has_served:
                self._has_served, delay, attempts = False, self._timeouts.min_restart_delay, 0
            attempts += 1
            log.warning("the engine stopped: %s; restart attempt %d in %g s", reason, attempts, delay)
            self._failure_suffix = f", after it stopped: {reason}"
            fault = Fault("engine_unavailable", f"the engine stopped ({reason}) and is being restarted", retryable=True)
            self._fail_jobs(fault, f"restarting: attempt {attempts} in {delay:g} s")
            await asyncio.sleep(delay)
            self._set_status("loading")
            delay = min(2 * delay, self._timeouts.max_restart_delay)

    async def _run_worker(self) -> str:
        """Runs one worker from its start to its exit. Returns the reason of the exit."""
        start = msgspec.structs.replace(self._start_command, options=self.adapters.start_options)
        set_connection = partial(setattr, self, "_connection")
        connecting = WorkerConnection.spawn_worker(self._spawn, self._on_report, start, set_connection)
        spawning = asyncio.create_task(connecting, name="engine-connect")
        try:
            connection = await asyncio.shield(spawning)
        except OSError as error:
            return f"the worker process could not be started: {error}"
        except asyncio.CancelledError:
            await spawning  # so that it can be closed
            raise
        watchdog = asyncio.create_task(
            connection.run_watchdog(step_timeout=self._timeouts.step_timeout, load_timeout=self._timeouts.load_timeout),
            name="engine-watchdog",
        )
        try:
            return await asyncio.shield(connection.exit_reason)
        finally:
            watchdog.cancel()

    def _on_report(self, report: Report) -> None:
        """Handles a message from the worker, in the event loop."""
        if isinstance(report, StepReport):
            self._stats = report.stats
            self._dispatch_chunks(report.chunks)
        elif isinstance(report, NeedMedia) and self._connection is not None:
            self._media.answer(report, self._connection)
        elif isinstance(report, AdapterReport):
            self.adapters.on_report(report)
        elif isinstance(report, WorkerFailed) and self._info is not None:
            self._failure_suffix = ""
            self._set_status(f"stopping: {report.reason}")
        elif isinstance(report, LoadProgress):
            self._set_status(f"loading: {report.text}")
        elif isinstance(report, WorkerReady):
            self._info, self._capacity = report.info, report.max_num_seqs + report.max_waiting
            self._stats, self._failure_suffix = EngineStats(max_num_seqs=report.max_num_seqs), ""
            self._set_status(None)
            self.adapters.on_ready()
            for waiter in self._waiters.values():
                resolve_future(waiter)
            if self._first_load is not None:
                resolve_future(self._first_load)

    def _dispatch_chunks(self, job_chunks: tuple[JobChunk, ...]) -> None:
        """Passes each chunk to its job. Chunks of jobs whose callers have left are dropped."""
        for job_id, chunk in job_chunks:
            if chunk.finish is None:
                pending = self._jobs.get(job_id)
            else:
                pending = self._jobs.pop(job_id, None)
                self._has_served |= chunk.finish in ("stop", "length")
            if pending is not None:
                pending.receive_chunk(chunk)

    def _fail_jobs(self, fault: Fault, reason: str) -> None:
        """Ends all jobs with `fault`, because their worker has exited."""
        self._set_status(reason)
        self.adapters.fail_requests(fault)
        self._stats = EngineStats()
        jobs, self._jobs = self._jobs, {}
        for pending in jobs.values():
            if pending is not None:
                pending.fail_lost(fault)

    def _stop_serving(self) -> None:
        """Fails all jobs and waiting callers; no further worker will be started."""
        self._fail_jobs(ENGINE_STOPPED, NOT_RUNNING)
        for waiter in (*self._waiters.values(), self._first_load):
            if waiter is not None:
                resolve_future(waiter, unavailable_error(ENGINE_STOPPED.message))

    def _set_status(self, reason: str | None) -> None:
        self._unready_reason = reason and f"{reason}{self._failure_suffix}"
        if self._supervisor is not None:
            self._on_status(self._unready_reason or "ready")
