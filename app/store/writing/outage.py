"""A time in which the database cannot be reached, and the operations that wait for its end."""

import time

from antiphon.app.store.writing.write_ops import WriteOp

MAX_LAST_STEP_WAIT_S = 10.0
"""Time without an answer after which the last steps of foreground responses are shown before they are written."""
MAX_RECONNECT_DELAY_S = 2.0
"""Longest time between two attempts to reach the database again. It is shorter than a lease."""
MAX_CLOSE_WAIT_S = 5.0
"""Time for which a server that exits waits for a database that cannot be reached."""


def is_overdue(waited_s: float) -> bool:
    """Tells whether clients have waited long enough for a database that does not answer."""
    return waited_s > MAX_LAST_STEP_WAIT_S


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
    def refuses_changes(self) -> bool:
        """True if changes that wait are refused, so that clients can repeat them.

        Those of an interrupted COMMIT, which may have been made, wait until they are overdue.
        """
        return not self.is_uncertain or is_overdue(self.elapsed_s)

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
