"""Turns that have lost their last reader: they run on for a time, in which their clients can read on."""

import asyncio
from collections import Counter
from collections.abc import Callable

import structlog

from antiphon.app.turns.turn import Turn
from antiphon.engine.protocol import Engine

_logger = structlog.get_logger(__name__)


class LeftTurns:
    """The turns without a reader, in the order in which they lost it. Each ends as cancelled after `grace_s` seconds.

    A turn that is not stored, or whose client does not know its id, ends at once, and so does one whose key limits the
    number of responses at the same time: the next one needs its place. One in the background, one that
    another process began and one that is read at another server need no reader here.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._timers: dict[Turn, asyncio.TimerHandle] = {}

    def add(self, turn: Turn, *, knows_id: bool) -> None:
        """Adds a turn that has lost its last reader. `knows_id`: its client can read on."""
        log = turn.log
        if log.base_response.background or turn.is_continued:
            return
        can_return = knows_id and log.base_response.store and not log.keeps_details  # a stored chat has no events
        key = turn.stats.key
        holds_place = key.limits.max_concurrent is not None or key.owner_limits.max_concurrent is not None
        if not can_return or holds_place or not self._grace_s:
            _end_turn(turn)
            return
        self._timers[turn] = asyncio.get_running_loop().call_later(self._grace_s, self._end_left, turn)

    def remove(self, turn: Turn) -> None:
        """Removes a turn that has a reader again, or has ended."""
        if (timer := self._timers.pop(turn, None)) is not None:
            timer.cancel()

    def count(self) -> int:
        """Returns the number of these turns that end as soon as others need their slots."""
        return sum(not turn.log.is_read_elsewhere for turn in self._timers)

    async def make_room(self, engine: Engine, count_missing: Callable[[], int]) -> None:
        """Ends turns of an engine until no slot is missing: the oldest of the owner with most of them first.

        If that would not be enough, it ends none.
        """
        while (missing := count_missing()) > 0:
            turns = [turn for turn in self._timers if turn.engine is engine and not turn.log.is_read_elsewhere]
            if len(turns) < missing:
                return
            counts = Counter(turn.log.owner for turn in turns)
            turn = max(turns, key=lambda each: counts[each.log.owner])  # of equal ones, the first
            _logger.info("a response without a reader is cancelled: its engine is full", response=turn.log.id)
            self.remove(turn)
            _end_turn(turn)
            await asyncio.wait({turn.task})

    def _end_left(self, turn: Turn) -> None:
        self.remove(turn)
        if not turn.log.is_read_elsewhere:
            _end_turn(turn)


def _end_turn(turn: Turn) -> None:
    turn.cancel_turn("client_left")
