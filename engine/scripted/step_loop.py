"""The step loop of the scripted engine: one event-loop callback per step for all its jobs.

An engine with a model delivers the chunks of all its jobs in one message per step. This loop does the same for the jobs
whose next chunk has no delay.
"""

import asyncio
from collections.abc import Callable, Iterator

from antiphon.engine.protocol import Chunk

DelayedChunk = tuple[float, Chunk]
"""Seconds to wait, and the chunk to deliver then."""


class StepLoop:
    """Delivers one chunk of every playing job per iteration of the event loop."""

    def __init__(self) -> None:
        self._playbacks: list[_Playback] = []
        self._step_scheduled = False

    async def play_chunks(
        self, chunks: Iterator[DelayedChunk], deliver: Callable[[Chunk], bool]
    ) -> DelayedChunk | None:
        """Passes the chunks to `deliver`, one per step, until one has a delay, it returns False, or they end.

        Returns the delayed chunk, which was not delivered, or None. Raises what `chunks` or `deliver` raises.
        """
        playback = _Playback(chunks, deliver)
        self._playbacks.append(playback)
        self._schedule_step()
        return await playback.done

    def _schedule_step(self) -> None:
        if self._playbacks and not self._step_scheduled:
            self._step_scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._step_scheduled = False
        playbacks, self._playbacks = self._playbacks, []
        for playback in playbacks:
            playback.play_next()
        self._playbacks = [playback for playback in playbacks if not playback.done.done()] + self._playbacks
        self._schedule_step()


class _Playback:
    """Playback of one job. `done` may be cancelled at any time, even from inside `deliver`."""

    def __init__(self, chunks: Iterator[DelayedChunk], deliver: Callable[[Chunk], bool]) -> None:
        self._chunks, self._deliver = chunks, deliver
        self.done: asyncio.Future[DelayedChunk | None] = asyncio.get_running_loop().create_future()

    def play_next(self) -> None:
        if self.done.done():
            return
        try:
            item = next(self._chunks, None)
            continues = item is not None and item[0] <= 0 and self._deliver(item[1])
        except Exception as error:  # noqa: BLE001  raised again where the job is awaited
            if not self.done.done():
                self.done.set_exception(error)
            return
        if not continues and not self.done.done():
            self.done.set_result(item if item is not None and item[0] > 0 else None)
