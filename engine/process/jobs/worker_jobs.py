"""The jobs of a worker process, as its parent sees them: sending, waiting, and continuing after the worker's end."""

import asyncio
import secrets
from collections.abc import Hashable

import msgspec

from antiphon.engine.process.connection import WorkerConnection
from antiphon.engine.process.jobs.pending import PendingJob, resolve_future, unavailable_error
from antiphon.engine.process.jobs.recovery import TRIED_ALONE, CrashRecovery
from antiphon.engine.process.media import WorkerMedia
from antiphon.engine.process.messages import AddJob, CancelJob
from antiphon.engine.process.timeouts import WorkerTimeouts
from antiphon.engine.protocol import (
    CANCELLED_WHILE_WAITING,
    EngineError,
    Fault,
    Job,
    JobChunk,
    OnChunk,
    is_full,
    overloaded_error,
)

NOT_RUNNING = "the engine is not running"
ENGINE_STOPPED = Fault("engine_unavailable", "the engine was stopped", retryable=True)
DEFAULT_CAPACITY = 256
"""Number of jobs that may wait until the first worker has reported its capacity."""


class WorkerJobs:
    """All jobs of an engine. Its supervisor sets `connection`, `unready_reason` and `capacity`."""

    def __init__(self, timeouts: WorkerTimeouts) -> None:
        self.media = WorkerMedia()
        self.connection: WorkerConnection | None = None
        self.unready_reason: str | None = NOT_RUNNING
        """Reason why no worker can take a job; None if one can."""
        self.capacity = DEFAULT_CAPACITY
        """Slots of the worker plus the length of its queue."""
        self.is_supervised = False
        """True while a worker is started again when it exits."""
        self._timeouts = timeouts
        self._sent: dict[str, PendingJob | None] = {}
        """Jobs in the worker. None if the caller has left, but the worker has not reported the job's end."""
        self._returning: dict[str, PendingJob] = {}
        """Admitted jobs between two runs."""
        self._recovery = CrashRecovery()
        self._waiters: dict[Hashable, asyncio.Future[None]] = {}

    async def cancel(self, job_id: str) -> None:
        """Ends a job before the next step."""
        if job_id in self._waiters:
            resolve_future(self._waiters[job_id], EngineError.from_fault(CANCELLED_WHILE_WAITING))
        elif job_id in self._sent and self.connection is not None:
            self.connection.send(CancelJob(job_id))

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Runs a job in the worker, and continues in the next one if the worker exits."""
        if job.id in self._sent or job.id in self._waiters:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        expires = None if job.deadline is None else asyncio.get_running_loop().time() + job.deadline
        if job.sampling.seed is None:  # drawn here, so that another worker draws the same numbers
            sampling = msgspec.structs.replace(job.sampling, seed=secrets.randbits(63))
            job = msgspec.structs.replace(job, sampling=sampling)
        pending = PendingJob(job, on_chunk)
        try:
            while pending.needs_run:
                await self._run_job(pending, expires)
        except EngineError as error:
            if not pending.is_admitted:
                raise
            pending.end_between_runs(error)
        finally:
            self._returning.pop(job.id, None)
            if self._recovery.clear(pending):
                self.wake_waiters()
        if (rejection := pending.rejection) is not None:
            raise EngineError.from_fault(rejection)

    async def wait_ready(self) -> None:
        """Returns as soon as a job would be accepted. Raises `EngineError` like `generate`."""
        await self._wait_until_sendable(object(), None, self._timeouts.wait_timeout, None)
        self._check_capacity(0)

    async def _run_job(self, pending: PendingJob, deadline_at: float | None) -> None:
        """Sends the job as soon as the engine has capacity, and waits for the end of this run."""
        job_id, timeouts = pending.job.id, self._timeouts
        timeout_s = timeouts.continue_within_s if pending.is_admitted else timeouts.wait_timeout
        await self._wait_until_sendable(job_id, deadline_at, timeout_s, pending)
        if not pending.is_admitted:
            self._check_capacity(pending.job.priority)
        if self.connection is None:
            raise unavailable_error(NOT_RUNNING)
        job = pending.begin_run()
        if deadline_at is not None:
            job = msgspec.structs.replace(job, deadline=deadline_at - asyncio.get_running_loop().time())
        self.connection.send(AddJob(job))  # before the job is counted: a job that cannot be encoded raises here
        self._sent[job_id] = pending
        self._returning.pop(job_id, None)
        self._recovery.begin_run(pending)
        self.media.add_job(job)
        try:
            await pending.done
        finally:
            self.media.remove_job(job_id)
            if self._sent.get(job_id) is pending:  # the worker still runs it
                await self.cancel(job_id)
                self._sent[job_id] = None

    def _check_capacity(self, priority: int) -> None:
        open_jobs = [0 if pending is None else pending.job.priority for pending in self._sent.values()]
        open_jobs += [pending.job.priority for pending in self._returning.values()]
        if is_full(self.capacity, open_jobs, priority):
            raise overloaded_error()

    def _find_obstacle(self, pending: PendingJob | None) -> str | None:
        """Returns the reason why a job cannot be sent to the worker now; None if it can."""
        if self.unready_reason is not None:
            return self.unready_reason
        may_run = self._recovery.may_run(pending, worker_is_empty=not self._sent)
        return None if may_run else TRIED_ALONE

    async def _wait_until_sendable(
        self, key: Hashable, deadline_at: float | None, timeout_s: float, pending: PendingJob | None
    ) -> None:
        """Waits until a job can be sent to the worker, at most until `deadline_at` (event loop time)."""
        loop = asyncio.get_running_loop()
        timeout_at = loop.time() + timeout_s
        until = timeout_at if deadline_at is None else min(deadline_at, timeout_at)
        while (obstacle := self._find_obstacle(pending)) is not None:
            if not self.is_supervised:
                raise unavailable_error(obstacle)
            if len(self._waiters) >= self.capacity and key not in self._returning:
                raise overloaded_error()
            self._waiters[key] = waiter = loop.create_future()
            try:
                async with asyncio.timeout_at(until):
                    await waiter
            except TimeoutError:
                if until == deadline_at:
                    raise EngineError("deadline_exceeded", f"the job did not start in time: {obstacle}", True) from None
                raise unavailable_error(self._find_obstacle(pending) or NOT_RUNNING) from None
            finally:
                del self._waiters[key]

    def dispatch_chunks(self, job_chunks: tuple[JobChunk, ...]) -> bool:
        """Passes each chunk to its job, and returns whether a job has finished well.

        Chunks of jobs whose callers have left are dropped.
        """
        has_served = False
        for job_id, chunk in job_chunks:
            if chunk.finish is None:
                pending = self._sent.get(job_id)
            else:
                pending = self._sent.pop(job_id, None)
                has_served |= chunk.finish in ("stop", "length", "repetition")
            if pending is not None:
                pending.receive_chunk(chunk)
                if chunk.tokens and pending is self._recovery.alone:
                    self._acquit(pending)
            if chunk.finish is not None and self._recovery.has_suspects:
                self.wake_waiters()
        return has_served

    def _acquit(self, pending: PendingJob) -> None:
        """Ends the time in which a job runs alone. It leaves the worker if another one has to run alone."""
        self._recovery.clear(pending)
        if not self._recovery.has_suspects:
            self.wake_waiters()
        elif self.connection is not None and self._sent.get(pending.job.id) is pending:
            self.connection.send(CancelJob(pending.job.id))
            self._sent[pending.job.id] = None
            self._returning[pending.job.id] = pending
            pending.end_run()

    def _take_sent(self) -> list[PendingJob]:
        """Removes and returns the jobs that were in the worker, which has exited."""
        jobs, self._sent = self._sent, {}
        return [pending for pending in jobs.values() if pending is not None]

    def lose_worker(self, fault: Fault) -> None:
        """Ends the runs of all jobs, because their worker has exited and another one will be started.

        `fault` is that of the jobs that do not continue.
        """
        jobs = self._take_sent()
        self._recovery.record_crash(jobs, fault, continues=self._timeouts.continue_within_s > 0)
        self._returning |= {job.job.id: job for job in jobs if job.needs_run and job.is_admitted}

    def stop(self) -> None:
        """Fails all jobs and waiting callers; no further worker will be started."""
        for pending in self._take_sent():
            pending.fail(ENGINE_STOPPED)
        self._recovery.reset()
        for waiter in self._waiters.values():
            resolve_future(waiter, unavailable_error(ENGINE_STOPPED.message))

    def wake_waiters(self) -> None:
        """Lets the callers that wait check again whether their jobs can be sent."""
        for waiter in self._waiters.values():
            resolve_future(waiter)
