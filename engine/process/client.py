"""The torch engine as the server sees it: its process is begun, watched, and begun again when it dies.

Nothing here imports torch. A job goes to the process in one message; a step of the process comes back in one, wakes the
event loop once and is dealt out to the streams. When the process dies, hangs or gives up, the jobs it had are ended
with a fault, and those that come meanwhile wait for the next one, within bounds.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from antiphon.engine.checkpoint.files import LoadError
from antiphon.engine.process.connection import Link
from antiphon.engine.process.messages import Add, Cancel, Failed, Ready, Report, Said, Stage, Start, Step
from antiphon.engine.process.pending import CANCELLED, Hearing
from antiphon.engine.process.spawn import Process, Spawn
from antiphon.engine.protocol import EngineError, EngineInfo, Fault, Hear, Job, Stats, overloaded

log = logging.getLogger(__name__)

BUILD = "antiphon.engine.process.worker:torch_core"
NOT_RUNNING = "the engine is not running"
STOPPED = Fault("engine_unavailable", "the engine was stopped", retryable=True)
UNKNOWN_BOUND = 256
"""How many jobs may wait for an engine that has not said yet how many it takes."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long what may take, in seconds."""

    hang_after: float = 120.0
    """A process that is silent for so long has hung: it is killed. A step must take less."""
    load_within: float = 1800.0
    """The same while it loads: no stage of loading may take longer."""
    patience: float = 30.0
    """A job waits so long for an engine that loads or is restarted."""
    first_pause: float = 0.1
    """Before the first restart; doubled for every one that served nothing."""
    longest_pause: float = 30.0


class TorchEngine:
    """Serves the model of ``folder``; ``options`` are fields of ``engine.builder.Options``.

    ``build`` says what makes the core in the process (see ``engine.process.messages.Start``); ``spawn`` begins the
    process; ``told`` hears of every stage and trouble in a few words.
    """

    def __init__(
        self,
        folder: str | Path = "",
        options: Mapping[str, Any] | None = None,
        *,
        build: str = BUILD,
        limits: Limits | None = None,
        spawn: Spawn = Process,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._start = Start(build, str(Path(folder).expanduser().absolute()), dict(options or {}))
        self._limits, self._spawn, self._told = limits or Limits(), spawn, told
        self._info: EngineInfo | None = None
        self._obstacle: str | None = NOT_RUNNING
        self._after = ""
        """What is said behind an obstacle: what went wrong before."""
        self._bound = UNKNOWN_BOUND
        self._stats = Stats()
        self._served = False
        self._link: Link | None = None
        self._life: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._jobs: dict[str, Hearing | None] = {}
        """What the process works on; None where the caller has left and the process has not yet said the end."""
        self._waiters: dict[Hashable, asyncio.Future[None]] = {}

    @property
    def info(self) -> EngineInfo:
        """What is fixed about the model; raises ``engine_unavailable`` until it was loaded for the first time."""
        if self._info is None:
            raise _unavailable(self._obstacle or NOT_RUNNING)
        return self._info

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self._link.host.pid if self._link else None

    def obstacle(self) -> str | None:
        """What a job would have to wait for; None: nothing."""
        return self._obstacle

    def places(self) -> int:
        """The slots and the queue; while the model loads for the first time, a guess."""
        return self._bound

    def stats(self) -> Stats:
        """Counts after the latest step; all zero while there is no model."""
        return self._stats

    async def start(self) -> None:
        """Load the model. Raises :class:`LoadError` with one line for a person."""
        if self._life is not None:
            return
        loop = asyncio.get_running_loop()
        self._after = ""
        self._first = loop.create_future()
        self._life = loop.create_task(self._live(self._first), name="engine life")
        self._face("loading")
        await self._first

    async def close(self) -> None:
        """End every job in flight and the process."""
        life, self._life = self._life, None
        if life is None:
            return
        life.cancel()
        await asyncio.wait({life})
        if self._link is not None:
            await self._link.close()
        self._link, self._info, self._after = None, None, ""
        self._give_up()

    async def ready(self) -> None:
        """Return when a job would be taken. Raises :class:`EngineError` like :meth:`generate`."""
        await self._turn(object(), None)

    async def cancel(self, job_id: str) -> None:
        """End a job before the next step."""
        if job_id in self._waiters:
            _settle(self._waiters[job_id], EngineError(CANCELLED.code, CANCELLED.message, CANCELLED.retryable))
        elif job_id in self._jobs and self._link is not None:
            self._link.say(Cancel(job_id))

    async def generate(self, job: Job, hear: Hear) -> None:
        """Have the process work on a job. One that it lost before it admitted it is sent to the next process, once."""
        if job.id in self._jobs or job.id in self._waiters:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        expires = None if job.deadline is None else asyncio.get_running_loop().time() + job.deadline
        hearing = await self._work(job, hear, expires)
        if hearing.lost:
            hearing = await self._work(job, hear, expires)
        if (refusal := hearing.refusal) is not None:
            raise EngineError(refusal.code, refusal.message, refusal.retryable)

    async def _work(self, job: Job, hear: Hear, expires: float | None) -> Hearing:
        """Send the job as soon as it would be taken, and wait for its end."""
        await self._turn(job.id, expires)
        if self._link is None:
            raise _unavailable(NOT_RUNNING)
        if expires is not None:
            job = msgspec.structs.replace(job, deadline=expires - asyncio.get_running_loop().time())
        hearing = self._jobs[job.id] = Hearing(hear)
        self._link.say(Add(job))
        try:
            await hearing.over
        finally:
            if self._jobs.get(job.id) is hearing:  # the process still works on it
                await self.cancel(job.id)
                self._jobs[job.id] = None
        return hearing

    async def _turn(self, key: Hashable, expires: float | None) -> None:
        """Wait, if need be, until the engine would take a job, but not past ``expires`` on the loop's clock."""
        loop = asyncio.get_running_loop()
        patient = loop.time() + self._limits.patience
        until = patient if expires is None else min(expires, patient)
        while self._obstacle is not None:
            if self._life is None:
                raise _unavailable(self._obstacle)
            if len(self._waiters) >= self._bound:
                raise overloaded()
            self._waiters[key] = waiter = loop.create_future()
            try:
                async with asyncio.timeout_at(until):
                    await waiter
            except TimeoutError:
                if until == expires:
                    raise EngineError("deadline_exceeded", f"not done in time: {self._obstacle}", True) from None
                raise _unavailable(self._obstacle or NOT_RUNNING) from None
            finally:
                del self._waiters[key]
        if len(self._jobs) >= self._bound:
            raise overloaded()

    # The process: begun, heard, lost, begun again

    async def _live(self, first: "asyncio.Future[None]") -> None:
        """One process after the other. If the first cannot load, there is no second."""
        pause, tries = self._limits.first_pause, 0
        while True:
            reason = await self._one()
            if self._info is None:
                self._life = None
                _settle(first, LoadError(reason))
                self._give_up()
                return
            if self._served:
                self._served, pause, tries = False, self._limits.first_pause, 0
            tries += 1
            log.warning("the engine stopped: %s; try %d to restart it in %g s", reason, tries, pause)
            self._after = f", after it stopped: {reason}"
            fault = Fault("engine_unavailable", f"the engine stopped ({reason}) and is being restarted", retryable=True)
            self._lose(fault, f"restarting: try {tries} in {pause:g} s")
            await asyncio.sleep(pause)
            self._face("loading")
            pause = min(2 * pause, self._limits.longest_pause)

    async def _one(self) -> str:
        """One process, from its first word to its end: why it ended."""
        opening = asyncio.create_task(Link.open(self._spawn, self._hear, self._start), name="engine opening")
        try:
            link = self._link = await asyncio.shield(opening)
        except OSError as error:
            return f"no process could be begun: {error}"
        except asyncio.CancelledError:
            self._link = await opening  # so that it can be closed
            raise
        watch = asyncio.create_task(
            link.watch(hang_after=self._limits.hang_after, load_within=self._limits.load_within), name="engine watch"
        )
        try:
            return await asyncio.shield(link.ended)
        finally:
            watch.cancel()

    def _hear(self, report: Report) -> None:
        """In the event loop, as messages come."""
        if isinstance(report, Step):
            self._stats = report.stats
            self._deal(report.said)
        elif isinstance(report, Failed) and self._info is not None:
            self._after = ""
            self._face(f"stopping: {report.reason}")
        elif isinstance(report, Stage):
            self._face(f"loading: {report.text}")
        elif isinstance(report, Ready):
            self._info, self._bound = report.info, report.slots + report.queue
            self._stats, self._after = Stats(slots=report.slots), ""
            self._face(None)
            for waiter in self._waiters.values():
                _settle(waiter)
            if self._first is not None:
                _settle(self._first)

    def _deal(self, said: tuple[Said, ...]) -> None:
        """Hand each chunk to who hears it; those that have left meanwhile are passed over."""
        for job_id, chunk in said:
            if chunk.finish is None:
                hearing = self._jobs.get(job_id)
            else:
                hearing = self._jobs.pop(job_id, None)
                self._served |= chunk.finish in ("stop", "length")
            if hearing is not None:
                hearing.take(chunk)

    def _lose(self, fault: Fault, obstacle: str) -> None:
        """The process is gone: whatever it had in hand ends with this fault."""
        self._face(obstacle)
        self._stats = Stats()
        jobs, self._jobs = self._jobs, {}
        for hearing in jobs.values():
            if hearing is not None:
                hearing.lose(fault)

    def _give_up(self) -> None:
        """There will be no next process."""
        self._lose(STOPPED, NOT_RUNNING)
        for waiter in (*self._waiters.values(), self._first):
            if waiter is not None:
                _settle(waiter, _unavailable(STOPPED.message))

    def _face(self, obstacle: str | None) -> None:
        self._obstacle = obstacle and f"{obstacle}{self._after}"
        if self._life is not None:
            self._told(self._obstacle or "ready")


def _unavailable(why: str) -> EngineError:
    return EngineError("engine_unavailable", why, retryable=True)


def _settle(future: "asyncio.Future[None]", error: Exception | None = None) -> None:
    """Wake whoever waits, unless nobody does any more."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
