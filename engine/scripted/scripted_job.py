"""One job in flight in the scripted engine."""

import asyncio
import contextlib
import math

from antiphon.engine.protocol import CANCELLED_WHILE_WAITING, Chunk, EngineError, Fault, Job

ENGINE_STOPPED_MESSAGE = "the engine was stopped"


class ScriptedJob:
    """State of a job in flight: whether it holds a slot, the cause of its end if it was ended, and its deadline."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.admitted = False
        self.end_cause: str | None = None
        self.num_generated = 0
        self.wake_event = asyncio.Event()
        self.deadline_at = math.inf if job.deadline is None else asyncio.get_running_loop().time() + job.deadline

    def end_with(self, cause: str) -> None:
        """Ends the job from outside its task, unless it was ended before."""
        if self.end_cause is None:
            self.end_cause = cause
            self.wake_event.set()

    async def wait_admitted(self) -> None:
        """Waits for a slot. Raises `EngineError` if the job is ended first."""
        await self.sleep(math.inf)
        if not self.admitted:
            raise EngineError.from_fault(self._build_fault())
        if self.end_cause is None:
            self.wake_event.clear()

    def final_chunk(self) -> Chunk | None:
        """Returns the last chunk of a job that was ended or has reached its deadline; otherwise None."""
        self._check_deadline()
        if self.end_cause == "cancelled":
            return Chunk(finish="cancelled")
        return Chunk(finish="error", fault=self._build_fault()) if self.end_cause else None

    async def sleep(self, seconds: float) -> None:
        """Waits for `seconds`, or until the job is ended or reaches its deadline."""
        wait = min(seconds, self.deadline_at - asyncio.get_running_loop().time())
        if wait > 0:
            # Not wait_for, which in Python 3.11 loses a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait == math.inf else wait):
                    await self.wake_event.wait()
        self._check_deadline()

    def _check_deadline(self) -> None:
        if (
            self.end_cause is None
            and self.deadline_at < math.inf
            and asyncio.get_running_loop().time() >= self.deadline_at
        ):
            self.end_cause = "deadline"

    def _build_fault(self) -> Fault:
        if self.end_cause == "closed":
            return Fault("engine_unavailable", ENGINE_STOPPED_MESSAGE, True)
        if self.end_cause == "deadline":
            return Fault("deadline_exceeded", f"not done within {self.job.deadline:g} s", True)
        return CANCELLED_WHILE_WAITING
