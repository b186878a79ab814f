"""Finished logs that a store keeps in memory, since clients often read a response soon after it has ended."""

from collections import OrderedDict
from collections.abc import Iterator

from antiphon.app.turn_types.event_log import EventLog

MAX_RECENT_LOGS = 256
"""Finished logs that are cached in memory."""
MAX_RECENT_BYTES = 16 << 20
"""Size of the cached logs as JSON. A log echoes its tools in three events, which may be tens of megabytes each."""


class RecentLogs:
    """The logs that were added last, by owner and id, within both limits."""

    def __init__(self) -> None:
        self._logs: OrderedDict[tuple[str, str], EventLog] = OrderedDict()
        self._size = 0

    def add(self, log: EventLog) -> None:
        """Adds a log and drops the oldest ones that exceed a limit."""
        self.drop(log.owner, log.id)
        self._logs[log.owner, log.id] = log
        self._size += log.size
        while len(self._logs) > MAX_RECENT_LOGS or self._size > MAX_RECENT_BYTES:
            self.drop(*next(iter(self._logs)))

    def find(self, owner: str, response_id: str) -> EventLog | None:
        """Returns a log."""
        return self._logs.get((owner, response_id))

    def __iter__(self) -> Iterator[EventLog]:
        return iter(self._logs.values())

    def clear(self) -> None:
        """Drops all logs."""
        self._logs.clear()
        self._size = 0

    def drop(self, owner: str, response_id: str) -> None:
        """Drops a log, if it is there."""
        log = self._logs.pop((owner, response_id), None)
        self._size -= log.size if log is not None else 0
