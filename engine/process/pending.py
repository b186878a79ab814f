"""A job in flight, tracked by the parent process."""

import asyncio

from antiphon.engine.protocol import CANCELLED_WHILE_WAITING, Chunk, EngineError, Fault, OnChunk


class PendingJob:
    """A job sent to the worker. `done` completes at the job's end, or with the exception of `on_chunk`."""

    def __init__(self, on_chunk: OnChunk, priority: int) -> None:
        self.priority = priority
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.rejection: Fault | None = None
        """Error of a job that was not admitted."""
        self.lost = False
        """True if the job was not admitted because its worker exited."""
        self._on_chunk, self._admitted = on_chunk, False

    def receive_chunk(self, chunk: Chunk) -> None:
        """Passes a chunk to the caller. The last chunk of a job that was not admitted becomes its `rejection`."""
        if self.done.done():
            return
        if chunk.finish is not None and not self._admitted:
            self.rejection = chunk.fault or CANCELLED_WHILE_WAITING
        else:
            self._admitted = True
            try:
                self._on_chunk(chunk)
            except Exception as error:  # noqa: BLE001  # one caller's error must not end the other jobs of this step
                if not self.done.done():
                    self.done.set_exception(error)
                return
        if chunk.finish is not None and not self.done.done():  # a caller that has left has cancelled it
            self.done.set_result(None)

    def fail_lost(self, fault: Fault) -> None:
        """Ends the job because its worker exited."""
        self.lost = not self._admitted
        self.receive_chunk(Chunk(finish="error", fault=fault))


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
