"""Shows the last steps of responses whose clients wait for a database that does not answer."""

import asyncio
from collections.abc import Mapping

from antiphon.app.event_log import EventLog
from antiphon.app.store import writer
from antiphon.app.store.writer import StoreWriter

CHECK_INTERVAL_S = 0.5


class OverdueSteps:
    """Checks the writer on the event loop, because the writer's thread waits for the database itself.

    `live` has the logs that the writer writes, by owner and id.
    """

    def __init__(self, store_writer: StoreWriter, live: Mapping[tuple[str, str], EventLog]) -> None:
        self._writer, self._live = store_writer, live
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def close(self) -> None:
        """Ends the checks."""
        self._timer.cancel()

    def _check(self) -> None:
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)
        if self._writer.busy_s() > writer.MAX_LAST_STEP_WAIT_S:
            for log in list(self._live.values()):
                if not log.base_response.background:
                    log.publish(len(log.entries))
