"""Work that several callers ask for at the same time, done once."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Pending:
    """Work in progress, and how many wait for it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.num_waiting = 0


class SharedWork:
    """Runs work by key. Belongs to one event loop."""

    def __init__(self) -> None:
        self._pending: dict[bytes, _Pending] = {}

    async def run(self, key: bytes, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Returns the result of `work`, which runs once for all callers meanwhile. It ends with the last of them."""
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending(asyncio.create_task(work()))
        pending.num_waiting += 1
        try:
            return await asyncio.shield(pending.task)
        finally:
            pending.num_waiting -= 1
            if not pending.num_waiting:
                if self._pending.get(key) is pending:
                    del self._pending[key]
                if not pending.task.done():
                    pending.task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await pending.task

    def cancel(self) -> None:
        """Cancels all work."""
        for pending in self._pending.values():
            pending.task.cancel()
