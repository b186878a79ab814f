"""The steps of an engine that plays scripts: one callback of the event loop for all its jobs, however many they are.

An engine that thinks brings what all its streams say in one message; so does this, for those that wait for nothing.
"""

import asyncio
from collections.abc import Callable, Iterator

from antiphon.engine.protocol import Chunk

DelayedChunk = tuple[float, Chunk]
"""A chunk, and the seconds to wait before it."""


class StepLoop:
    """Each turn of the event loop, everybody who plays gives one chunk."""

    def __init__(self) -> None:
        self._playbacks: list[_Playback] = []
        self._step_scheduled = False

    async def play_chunks(
        self, chunks: Iterator[DelayedChunk], deliver: Callable[[Chunk], bool]
    ) -> DelayedChunk | None:
        """Give the chunks to ``take``, one a step, until it says no: the first that must be waited for, if any.

        Raises what either of them raises.
        """
        play = _Playback(chunks, deliver)
        self._playbacks.append(play)
        self._schedule_step()
        return await play.done

    def _schedule_step(self) -> None:
        if self._playbacks and not self._step_scheduled:
            self._step_scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._step_scheduled = False
        plays, self._playbacks = self._playbacks, []
        for play in plays:
            play.play_next()
        self._playbacks = [play for play in plays if not play.done.done()] + self._playbacks
        self._schedule_step()


class _Playback:
    """One job. ``over`` may be cancelled at any time, by whoever hears a chunk, too."""

    def __init__(self, chunks: Iterator[DelayedChunk], deliver: Callable[[Chunk], bool]) -> None:
        self._chunks, self._deliver = chunks, deliver
        self.done: asyncio.Future[DelayedChunk | None] = asyncio.get_running_loop().create_future()

    def play_next(self) -> None:
        if self.done.done():
            return
        try:
            late = next(self._chunks, None)
            goes_on = late is not None and late[0] <= 0 and self._deliver(late[1])
        except Exception as error:  # noqa: BLE001  raised again where the job is awaited
            if not self.done.done():
                self.done.set_exception(error)
            return
        if not goes_on and not self.done.done():
            self.done.set_result(late if late is not None and late[0] > 0 else None)
