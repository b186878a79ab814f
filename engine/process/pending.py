"""Whoever hears of one job, as the parent of an engine process keeps it."""

import asyncio

from antiphon.engine.protocol import Chunk, Fault, Hear

CANCELLED = Fault("cancelled", "the job was cancelled while it waited", retryable=True)


class Hearing:
    """Who hears of a job. ``over`` is done at its end."""

    def __init__(self, hear: Hear) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refusal: Fault | None = None
        """Why the job was not admitted, if it was not."""
        self.lost = False
        """Whether that was because its process was lost."""
        self._hear, self._admitted = hear, False

    def take(self, chunk: Chunk) -> None:
        """Pass a chunk on. One that ends a job which never began is no chunk for the caller."""
        if self.over.done():
            return
        if chunk.finish is not None and not self._admitted:
            self.refusal = chunk.fault or CANCELLED
        else:
            self._admitted = True
            try:
                self._hear(chunk)
            except Exception as error:  # noqa: BLE001  # theirs: it must not end the other jobs of this step
                if not self.over.done():
                    self.over.set_exception(error)
                return
        if chunk.finish is not None and not self.over.done():  # whoever heard the last word may have left at once
            self.over.set_result(None)

    def lose(self, fault: Fault) -> None:
        """The process that had the job is gone."""
        self.lost = not self._admitted
        self.take(Chunk(finish="error", fault=fault))
