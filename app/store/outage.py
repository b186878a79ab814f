"""A time in which the database cannot be reached, and the operations that wait for its end."""

import enum
import time

from antiphon.app.store.write_ops import WriteOp

MAX_LAST_STEP_WAIT_S = 10.0
"""Time without an answer after which the last steps of foreground responses are shown before they are written."""
MAX_RECONNECT_DELAY_S = 2.0
"""Longest time between two attempts to reach the database again. It is shorter than a lease."""
MAX_CLOSE_WAIT_S = 5.0
"""Time for which a server that exits waits for a database that cannot be reached."""


def is_overdue(waited_s: float) -> bool:
    """Tells whether clients have waited long enough for a database that does not answer."""
    return waited_s > MAX_LAST_STEP_WAIT_S


class OutageState(enum.Enum):
    """What happens to operations that wait. The steps of background responses are not shown in any state."""

    UNCERTAIN = enum.auto()
    """Changes of an interrupted COMMIT wait, since they may have been made. New ones are refused."""
    REFUSING = enum.auto()
    """Changes are refused, so that clients can repeat them."""
    OVERDUE = enum.auto()
    """Changes are refused, and the last steps of foreground responses are shown."""


class Outage:
    """An outage that began with `batch`, the operations of the transaction that failed."""

    def __init__(self, batch: list[WriteOp], *, is_uncertain: bool) -> None:
        self.batch, self.is_uncertain = batch, is_uncertain
        self.queued: list[WriteOp] = []
        """Operations that were queued since then."""
        self.last_error = ""
        self._began = time.monotonic()
        self._delay, self._give_up_at = 0.1, float("inf")

    @property
    def state(self) -> OutageState:
        """State of the outage now."""
        if is_overdue(self.elapsed_s):
            return OutageState.OVERDUE
        return OutageState.UNCERTAIN if self.is_uncertain else OutageState.REFUSING

    @property
    def elapsed_s(self) -> float:
        """Seconds since the outage began."""
        return time.monotonic() - self._began

    def next_delay(self) -> float:
        """Returns the seconds until the next attempt to reach the database: more each time."""
        delay, self._delay = self._delay, min(self._delay * 2, MAX_RECONNECT_DELAY_S)
        return delay

    def is_given_up(self) -> bool:
        """Tells whether a server that exits has waited long enough. The time runs from the first call on."""
        self._give_up_at = min(self._give_up_at, time.monotonic() + MAX_CLOSE_WAIT_S)
        return time.monotonic() > self._give_up_at
