"""Reads the events that other servers write, in a thread with a connection of its own.

Notifications tell of new events, of responses that others read, and of cancellations. PgBouncer in transaction mode
drops notifications, and a connection can be lost, so the thread also polls.
"""

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Iterable

import structlog

from antiphon.app.store.history.event_tables import MARK_WANTED
from antiphon.app.store.postgres.address import DatabaseAddress
from antiphon.app.store.postgres.connection import PostgresConnection
from antiphon.app.store.postgres.database import (
    CANCEL_CHANNEL,
    STEPS_CHANNEL,
    WANTED_CHANNEL,
    PostgresReads,
)
from antiphon.app.store.writing.tracked_logs import TrackedLogs
from antiphon.app.turn_types.event_log import EventLog

FOLLOW_POLL_INTERVAL_S = 1.0
"""Seconds between two reads of the followed responses without a notification."""
IDLE_INTERVAL_S = 10.0
"""Seconds between two checks of a connection on which nothing is followed."""
MAX_RECONNECT_DELAY_S = 2.0
"""Longest time between two attempts to reach the database again."""
MAX_CLOSE_WAIT_S = 5.0
"""Time for which the exit waits for the thread that follows."""
_log = structlog.get_logger(__name__)


class Follower:
    """Follows responses until they end. `follow` and `close` may be called from another thread."""

    def __init__(self, address: DatabaseAddress, logs: TrackedLogs) -> None:
        self._address, self._logs = address, logs
        self._added: queue.SimpleQueue[_FollowedLog] = queue.SimpleQueue()
        self._followed: dict[str, list[_FollowedLog]] = {}
        """Logs by the id of the response: two if it was this process's own in between."""
        self._wake_writer, self._wake_reader = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="store-follower", daemon=True)
        self._thread.start()

    def follow(self, log: EventLog) -> None:
        """Begins to read the new events of a log."""
        self._added.put(_FollowedLog(log))
        self._wake_writer.send(b"f")

    def close(self) -> None:
        """Ends the thread."""
        self._is_closing = True
        with contextlib.suppress(OSError):  # the thread has ended
            self._wake_writer.send(b"c")
        self._wake_writer.close()
        self._thread.join(MAX_CLOSE_WAIT_S)  # it takes longer while the database does not answer

    def _run(self) -> None:
        with self._wake_reader:
            self._reconnect_until_closed()

    def _reconnect_until_closed(self) -> None:
        delay = 0.1
        while not self._is_closing:
            try:
                connection = PostgresConnection(self._address)
                try:
                    delay = 0.1
                    self._listen(connection)
                finally:
                    connection.close()
            except Exception as error:  # noqa: BLE001  # the thread serves all readers until the server exits
                _log.warning("reading from other servers was interrupted", error=self._address.describe_error(error))
                self._sleep(delay)
                delay = min(delay * 2, MAX_RECONNECT_DELAY_S)

    def _listen(self, connection: PostgresConnection) -> None:
        """Follows until the connection is lost or the follower is closed."""
        database = PostgresReads(connection)
        for channel in (STEPS_CHANNEL, WANTED_CHANNEL, CANCEL_CHANNEL):
            connection.run_script(f"LISTEN {channel}")
        self._tell_wanted(connection, list(self._followed))
        self._load_events(database, list(self._followed))
        polled_at = time.monotonic()
        while not self._is_closing:
            self._tell_wanted(connection, new_ids := self._take_added())
            interval = FOLLOW_POLL_INTERVAL_S if self._followed else IDLE_INTERVAL_S
            if not new_ids:
                wait_s = max(polled_at + interval - time.monotonic(), 0.0)
                _wait_readable((connection.session.fileno(), self._wake_reader.fileno()), wait_s)
            with contextlib.suppress(BlockingIOError):
                self._wake_reader.recv(4096)
            changed = self._take_notifications(connection)
            if time.monotonic() - polled_at >= interval:
                connection.execute("SELECT 1")  # notices a lost connection
                changed, polled_at = list(self._followed), time.monotonic()
            self._load_events(database, [*dict.fromkeys([*new_ids, *changed])])

    def _take_added(self) -> list[str]:
        ids = []
        while not self._added.empty():
            added = self._added.get()
            self._followed.setdefault(added.log.id, []).append(added)
            ids.append(added.log.id)
        return ids

    def _tell_wanted(self, connection: PostgresConnection, ids: list[str]) -> None:
        """Tells the writers of these responses that they are read here, each once."""
        for response_id in ids:
            connection.execute(MARK_WANTED, (response_id,))
            connection.execute("SELECT pg_notify(?, ?)", (WANTED_CHANNEL, response_id))

    def _take_notifications(self, connection: PostgresConnection) -> list[str]:
        """Handles the notifications that have arrived. Returns the ids of followed responses with new events."""
        changed: list[str] = []
        for notification in connection.session.notifies(timeout=0):
            if notification.channel == WANTED_CHANNEL:
                self._logs.on_wanted(notification.payload)
            elif notification.channel == CANCEL_CHANNEL:
                self._logs.on_remote_cancel(notification.payload)
            elif notification.payload == "*":
                changed += self._followed
            else:
                pairs = (pair.rpartition(":") for pair in notification.payload.split(","))
                changed += [id_ for id_, _, number in pairs if self._has_news(id_, int(number))]
        return changed

    def _has_news(self, response_id: str, number: int) -> bool:
        """Tells whether a log of the response has fewer than `number` events."""
        return any(followed.position < number for followed in self._followed.get(response_id, ()))

    def _load_events(self, database: PostgresReads, ids: list[str]) -> None:
        for response_id in ids:
            for followed in list(self._followed.get(response_id, ())):
                news = database.events.load_news(response_id, followed.position)
                followed.position += len(news.entries)
                if news.entries or not news.has_writer:
                    self._logs.on_remote_news(followed.log, news)
                if not news.has_writer:
                    self._followed[response_id].remove(followed)
            if not self._followed.get(response_id, True):
                del self._followed[response_id]

    def _sleep(self, seconds: float) -> None:
        """Waits, but not after `close`."""
        _wait_readable((self._wake_reader.fileno(),), 0.0 if self._is_closing else seconds)
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)


class _FollowedLog:
    """A log, and the number of its events that have been read."""

    def __init__(self, log: EventLog) -> None:
        self.log, self.position = log, len(log.entries)


def _wait_readable(descriptors: Iterable[int], seconds: float) -> None:
    """Waits until one of the descriptors can be read. They may be above 1023, which `select.select` refuses."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        selector.select(seconds)
