"""The steps of an engine that plays scripts: one callback of the event loop for all its jobs, however many they are.

An engine that thinks brings what all its streams say in one message; so does this, for those that wait for nothing.
"""

import asyncio
from collections.abc import Callable, Iterator

from antiphon.engine.protocol import Chunk

Late = tuple[float, Chunk]
"""A chunk, and the seconds to wait before it."""


class Steps:
    """Each turn of the event loop, everybody who plays gives one chunk."""

    def __init__(self) -> None:
        self._plays: list[_Play] = []
        self._due = False

    async def play(self, chunks: Iterator[Late], take: Callable[[Chunk], bool]) -> Late | None:
        """Give the chunks to ``take``, one a step, until it says no: the first that must be waited for, if any.

        Raises what either of them raises.
        """
        play = _Play(chunks, take)
        self._plays.append(play)
        self._go_on()
        return await play.over

    def _go_on(self) -> None:
        if self._plays and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._due = False
        plays, self._plays = self._plays, []
        for play in plays:
            play.step()
        self._plays = [play for play in plays if not play.over.done()] + self._plays
        self._go_on()


class _Play:
    """One job. ``over`` may be cancelled at any time, by whoever hears a chunk, too."""

    def __init__(self, chunks: Iterator[Late], take: Callable[[Chunk], bool]) -> None:
        self._chunks, self._take = chunks, take
        self.over: asyncio.Future[Late | None] = asyncio.get_running_loop().create_future()

    def step(self) -> None:
        if self.over.done():
            return
        try:
            late = next(self._chunks, None)
            goes_on = late is not None and late[0] <= 0 and self._take(late[1])
        except Exception as error:  # noqa: BLE001  raised again where the job is awaited
            if not self.over.done():
                self.over.set_exception(error)
            return
        if not goes_on and not self.over.done():
            self.over.set_result(late if late is not None and late[0] > 0 else None)
