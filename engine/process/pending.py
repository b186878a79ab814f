"""Whoever hears of one job, as the parent of an engine process keeps it."""

import asyncio

from antiphon.engine.protocol import Chunk, Fault, OnChunk

CANCELLED_WHILE_WAITING = Fault("cancelled", "the job was cancelled while it waited", retryable=True)


class PendingJob:
    """Who hears of a job. ``over`` is done at its end."""

    def __init__(self, on_chunk: OnChunk) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.rejection: Fault | None = None
        """Why the job was not admitted, if it was not."""
        self.lost = False
        """Whether that was because its process was lost."""
        self._on_chunk, self._admitted = on_chunk, False

    def receive_chunk(self, chunk: Chunk) -> None:
        """Pass a chunk on. One that ends a job which never began is no chunk for the caller."""
        if self.done.done():
            return
        if chunk.finish is not None and not self._admitted:
            self.rejection = chunk.fault or CANCELLED_WHILE_WAITING
        else:
            self._admitted = True
            try:
                self._on_chunk(chunk)
            except Exception as error:  # noqa: BLE001  # theirs: it must not end the other jobs of this step
                if not self.done.done():
                    self.done.set_exception(error)
                return
        if chunk.finish is not None and not self.done.done():  # whoever heard the last word may have left at once
            self.done.set_result(None)

    def fail_lost(self, fault: Fault) -> None:
        """The process that had the job is gone."""
        self.lost = not self._admitted
        self.receive_chunk(Chunk(finish="error", fault=fault))
