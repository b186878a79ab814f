"""Reads the responses of dead processes that the writer has claimed, which may be long, while the writer continues."""

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from antiphon.app.inspection.summaries import RESTARTED_CODE
from antiphon.app.store.base import ClaimedResponse
from antiphon.app.store.database import Database
from antiphon.app.store.history.step_rows import NewStep
from antiphon.app.store.sql_connection import UnreadableRowError
from antiphon.app.store.writing.tracked_logs import TrackedLogs
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.state.recovery import failure_events

RESTARTED_MESSAGE = "The server process stopped before this response was complete. Retry the request."
CLAIM_RETRY_S = 1.0
"""Pause before a response of a dead process is read again that could not be read, or not be ended."""

_log = structlog.get_logger(__name__)


class ClaimedResponses:
    """Passes the logs of claimed responses on, or ends them, one after another in the order of their claims.

    `reader` is used in threads; `name` is that of this process as a writer. Use the object on the event loop.
    """

    def __init__(self, reader: Database, logs: TrackedLogs, name: str) -> None:
        self._reader, self._logs, self._name = reader, logs, name
        self.on_claimed: Callable[[EventLog], None] = lambda _: None
        """Receives each log that this process continues."""
        self._waiting: deque[ClaimedResponse] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        logs.on_claimed = self.add

    def add(self, claimed: ClaimedResponse) -> None:
        """Receives a response that was claimed."""
        if self._is_closed:
            return
        self._waiting.append(claimed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="claimed-responses")

    def close(self) -> None:
        """Leaves what was not read to the next process."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._waiting:
            claimed = self._waiting.popleft()
            try:
                await (self._end(claimed) if claimed.continuation is None else self._pass_on(claimed))
            except Exception as error:  # noqa: BLE001  # without another attempt the response would never end
                _log.warning("a response of another process cannot be read yet", response=claimed.id, error=str(error))
                self._waiting.append(claimed)
                await asyncio.sleep(CLAIM_RETRY_S)

    async def _pass_on(self, claimed: ClaimedResponse) -> None:
        found = await asyncio.to_thread(self._reader.find_log, claimed.owner, claimed.id)
        if found is None:
            await self._delete(claimed)
        elif found[1] == self._name:  # else this process has paused, and another one has claimed the response
            log = found[0]
            log.continuation = claimed.continuation
            log.cancel_requested = await asyncio.to_thread(self._reader.events.is_cancel_requested, claimed.id)
            self.on_claimed(log)

    async def _end(self, claimed: ClaimedResponse) -> None:
        """Ends a response as failed, unless another process has claimed it meanwhile."""
        try:
            missing = await asyncio.to_thread(_find_missing, self._reader, claimed.id)
        except UnreadableRowError as error:
            _log.error("stored response is unreadable", response=claimed.id, error=str(error))
            await self._delete(claimed)
            return
        if missing:
            steps = [NewStep(claimed.owner, claimed.id, missing)]
            await self._logs.enqueue_change(lambda database: database.append_steps(steps, self._name)).wait_done()

    async def _delete(self, claimed: ClaimedResponse) -> None:
        """Deletes an unreadable response. One that a client has deleted does not exist any more."""
        _log.error("unreadable response deleted", response=claimed.id)
        await self._logs.enqueue_change(lambda database: database.delete_response(claimed.id)).wait_done()


def _find_missing(reader: Database, response_id: str) -> list[LogEntry]:
    """Returns the entries with which a log that breaks off ends as failed. Raises `UnreadableRowError`."""
    events = [entry.event for entry in reader.load_entries(response_id)]
    if not events:
        raise UnreadableRowError("it has no events")
    missing = failure_events(events, code=RESTARTED_CODE, message=RESTARTED_MESSAGE)
    return [LogEntry.from_event(event) for event in missing]
