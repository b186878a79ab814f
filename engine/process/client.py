"""The parent side of the engine's worker process: spawns it, supervises it, and restarts it when it exits.

This module imports no torch. Each job is sent in one message, and each engine step returns in one, which wakes the
event loop once and is dispatched to its jobs. When the worker exits, hangs or fails, its jobs continue in the next one.
Jobs that arrive before the next worker is ready wait for it, up to a limit in number and time.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.adapters import WorkerAdapters
from antiphon.engine.process.connection import WorkerConnection
from antiphon.engine.process.jobs.pending import resolve_future, unavailable_error
from antiphon.engine.process.jobs.worker_jobs import ENGINE_STOPPED, NOT_RUNNING, WorkerJobs
from antiphon.engine.process.messages import (
    AdapterReport,
    Command,
    LoadProgress,
    NeedMedia,
    Report,
    StartCommand,
    StepReport,
    WorkerFailed,
    WorkerReady,
)
from antiphon.engine.process.spawn import SpawnWorker, WorkerProcess
from antiphon.engine.process.timeouts import WorkerTimeouts
from antiphon.engine.protocol import EngineInfo, EngineStats, Fault, Job, MediaSource, OnChunk

log = logging.getLogger(__name__)

DEFAULT_CORE_FACTORY = "antiphon.engine.process.child.worker:build_torch_core"


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
        self._failure_suffix = ""  # appended to the unready reason: why the previous worker stopped
        self._stats = EngineStats()
        self.num_restarts = 0
        """Times that a worker was started because another one had exited."""
        self._has_served = False
        self._supervisor: asyncio.Task[None] | None = None
        self._first_load: asyncio.Future[None] | None = None
        self.adapters = WorkerAdapters(self._start_command.options, self._send)
        self._jobs = WorkerJobs(self._timeouts)

    @property
    def info(self) -> EngineInfo:
        """Fixed properties of the model. Raises `engine_unavailable` until the model has been loaded once."""
        if self._info is None:
            raise unavailable_error(self._jobs.unready_reason or NOT_RUNNING)
        return self._info

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None if there is no worker."""
        return self._jobs.connection.worker.pid if self._jobs.connection else None

    def unready_reason(self) -> str | None:
        """Returns the reason why a job would have to wait; None if it would not."""
        return self._jobs.unready_reason

    def capacity(self) -> int:
        """Returns the number of slots plus the length of the queue; a default until the model has been loaded once."""
        return self._jobs.capacity

    def stats(self) -> EngineStats:
        """Returns the counts after the latest step; all zero while no model is loaded."""
        return self._stats

    def attach_media(self, source: MediaSource) -> None:
        """Sets the source of the pictures of jobs."""
        self._jobs.media.source = source

    async def start(self) -> None:
        """Loads the model. Raises `LoadError` with a one-line message for the operator."""
        if self._supervisor is not None:
            return
        loop = asyncio.get_running_loop()
        self._failure_suffix = ""
        self._first_load = loop.create_future()
        self._supervisor = loop.create_task(self._supervise(self._first_load), name="engine-supervisor")
        self._jobs.is_supervised = True
        self._set_status("loading")
        await self._first_load

    async def close(self) -> None:
        """Ends every job in flight and stops the worker."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        self._jobs.is_supervised = False
        supervisor.cancel()
        await asyncio.wait({supervisor})
        if self._jobs.connection is not None:
            await self._jobs.connection.close()
        self._jobs.connection, self._info, self._failure_suffix = None, None, ""
        self._stop_serving()

    async def wait_ready(self) -> None:
        """Returns as soon as a job would be accepted. Raises `EngineError` like `generate`."""
        await self._jobs.wait_ready()

    async def cancel(self, job_id: str) -> None:
        """Ends a job before the next step."""
        await self._jobs.cancel(job_id)

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Runs a job in the worker, and continues in the next one if the worker exits."""
        await self._jobs.generate(job, on_chunk)

    def _send(self, command: Command) -> None:
        if self._jobs.connection is None or self._jobs.unready_reason is not None:
            raise unavailable_error(self._jobs.unready_reason or NOT_RUNNING)
        self._jobs.connection.send(command)

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
            self._reset_worker(fault, f"restarting: attempt {attempts} in {delay:g} s")
            self._jobs.lose_worker(fault)
            await asyncio.sleep(delay)
            self.num_restarts += 1
            self._set_status("loading")
            delay = min(2 * delay, self._timeouts.max_restart_delay)

    async def _run_worker(self) -> str:
        """Runs one worker from its start to its exit. Returns the reason of the exit."""
        start = msgspec.structs.replace(self._start_command, options=self.adapters.start_options)
        set_connection = partial(setattr, self._jobs, "connection")
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
            self._has_served |= self._jobs.dispatch_chunks(report.chunks)
        elif isinstance(report, NeedMedia) and self._jobs.connection is not None:
            self._jobs.media.answer(report, self._jobs.connection)
        elif isinstance(report, AdapterReport):
            self.adapters.on_report(report)
        elif isinstance(report, WorkerFailed) and self._info is not None:
            self._failure_suffix = ""
            self._set_status(f"stopping: {report.reason}")
        elif isinstance(report, LoadProgress):
            self._set_status(f"loading: {report.text}")
        elif isinstance(report, WorkerReady):
            self._info, self._jobs.capacity = report.info, report.max_num_seqs + report.max_waiting
            self._stats, self._failure_suffix = EngineStats(max_num_seqs=report.max_num_seqs), ""
            self._set_status(None)
            self.adapters.on_ready()
            self._jobs.wake_waiters()
            if self._first_load is not None:
                resolve_future(self._first_load)

    def _reset_worker(self, fault: Fault, reason: str) -> None:
        """Forgets the worker, which has exited."""
        self._set_status(reason)
        self.adapters.fail_requests(fault)
        self._stats = EngineStats()

    def _stop_serving(self) -> None:
        """Fails all jobs and waiting callers; no further worker will be started."""
        self._jobs.is_supervised = False
        self._reset_worker(ENGINE_STOPPED, NOT_RUNNING)
        self._jobs.stop()
        if self._first_load is not None:
            resolve_future(self._first_load, unavailable_error(ENGINE_STOPPED.message))

    def _set_status(self, reason: str | None) -> None:
        self._jobs.unready_reason = reason and f"{reason}{self._failure_suffix}"
        if self._supervisor is not None:
            self._on_status(self._jobs.unready_reason or "ready")
