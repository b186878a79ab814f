"""A job in flight, tracked by the parent process."""

import asyncio
from array import array

import msgspec

from antiphon.engine.protocol import CANCELLED_WHILE_WAITING, Chunk, EngineError, Fault, Job, OnChunk


class PendingJob:
    """A job in flight, through all its runs in workers.

    `done` completes when a run ends, or with the exception of `on_chunk`. The caller sees one job: a later run
    continues after the tokens that it got from the earlier ones, and its admission is not reported again.
    """

    def __init__(self, job: Job, on_chunk: OnChunk) -> None:
        self.job = job
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.rejection: Fault | None = None
        """Error of a job that was not admitted."""
        self.is_admitted = False
        self.needs_run = True
        """True until a run has ended the job."""
        self.num_crashes = 0
        """Number of workers that have exited while they had the job."""
        self.can_continue = not job.encoder_inputs
        """False for a job of an encoder: its client gets one reply, and repeats a request that fails."""
        self._generated = array("i")
        self._reports_admission = True
        self._on_chunk = on_chunk

    def begin_run(self) -> Job:
        """Returns the job for the next worker."""
        self.done = asyncio.get_running_loop().create_future()
        self._reports_admission = not self.is_admitted
        if not self.is_admitted:
            return self.job
        return msgspec.structs.replace(self.job, generated=(*(self.job.generated or ()), *self._generated))

    def end_run(self) -> None:
        """Ends a run after which the job continues in another one."""
        if not self.done.done():
            self.done.set_result(None)

    def receive_chunk(self, chunk: Chunk) -> None:
        """Passes a chunk to the caller. The last chunk of a job that was not admitted becomes its `rejection`."""
        if self.done.done():
            return
        self.needs_run = chunk.finish is None
        if chunk.finish is not None and not self.is_admitted:
            self.rejection = chunk.fault or CANCELLED_WHILE_WAITING
        elif self._reports_admission or chunk.tokens or chunk.finish or chunk.prompt_logprobs:
            self.is_admitted = True
            self._generated.extend(chunk.tokens)
            try:
                self._on_chunk(chunk)
            except Exception as error:  # noqa: BLE001  # one caller's error must not end the other jobs of this step
                self.needs_run = False
                if not self.done.done():
                    self.done.set_exception(error)
                return
        if chunk.finish is not None:
            self.end_run()  # a caller that has left has cancelled `done`

    def fail(self, fault: Fault) -> None:
        """Ends the job with a fault."""
        self.receive_chunk(Chunk(finish="error", fault=fault))

    def end_between_runs(self, error: EngineError) -> None:
        """Ends a job that was admitted, and cannot run again."""
        if error.code == CANCELLED_WHILE_WAITING.code:
            self._on_chunk(Chunk(finish="cancelled"))
        else:
            self._on_chunk(Chunk(finish="error", fault=Fault(error.code, error.message, error.retryable)))


def unavailable_error(reason: str) -> EngineError:
    """Returns the error for a caller whose engine has no worker that is ready."""
    return EngineError("engine_unavailable", reason, retryable=True)


def resolve_future(future: "asyncio.Future[None]", error: Exception | None = None) -> None:
    """Completes the future, unless it is done or cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
