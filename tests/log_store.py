"""A store for tests of turns that have no server: it keeps the logs as they are, and needs no thread."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import cast

from antiphon.app.store.store import ResponseStore
from antiphon.app.store.writing.write_ops import StoreChange
from antiphon.app.store.writing.writer_lease import HeartbeatWatch
from antiphon.app.turn_types.event_log import EventLog


class LogStore:
    """Keeps all logs until it is freed."""

    def __init__(self) -> None:
        self._logs: dict[tuple[str, str], EventLog] = {}
        self._used: set[tuple[str, str]] = set()
        self.servers = HeartbeatWatch("", lease_s=math.inf)

    def add_log(self, log: EventLog) -> None:
        self._logs[log.owner, log.id] = log
        log.mark_kept(math.inf)

    async def use_approvals(self, owner: str, nonces: Sequence[str]) -> bool:
        are_unused = self._used.isdisjoint((owner, nonce) for nonce in nonces)
        if are_unused:
            self._used.update((owner, nonce) for nonce in nonces)
        return are_unused

    def release_approvals(self, owner: str, nonces: Sequence[str]) -> StoreChange:
        self._used -= {(owner, nonce) for nonce in nonces}
        change = StoreChange(lambda _: None, asyncio.get_running_loop().create_future())
        change.succeed()
        return change

    def add_completion(self, _completion: object, _messages: object, logs: Sequence[EventLog]) -> None:
        for log in logs:
            self.add_log(log)

    async def read_log(self, owner: str, response_id: str) -> EventLog | None:
        return self._logs.get((owner, response_id))

    def unavailable_reason(self) -> None:
        """Returns None: it is always available."""

    def on_cancel_request(self, callback: Callable[[str], None]) -> None:
        """Does nothing: no other process uses it."""

    def limit_owners(self, owner_bytes: Callable[[], object]) -> None:
        """Does nothing: it deletes nothing."""

    def watch_commits(self, report: Callable[[float], None]) -> None:
        """Does nothing: it has no transactions."""

    def report_figures(self, report: object) -> None:
        """Does nothing: no other server reads them."""


def make_log_store() -> ResponseStore:
    """Returns a store with the methods that a turn manager calls."""
    return cast("ResponseStore", LogStore())
