"""Reads of the store by requests: waits for a database that is away, so that the event loop does not, and threads."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from msgspec import Struct

from antiphon.app.context import AnyRequest, ServerContext, request_owner, server_context
from antiphon.app.requests.history import History
from antiphon.events.inputs import AnyInput, CompactionInput, InputReasoning

T = TypeVar("T")

MAX_SEARCHED_ITEMS = 500
"""Number of items that are searched for ids. More may well have one."""
MAX_LOOP_WAIT_S = 60.0
"""Time after which a thread no longer waits for the event loop, which may have ended."""


async def prepare_read(request: AnyRequest) -> None:
    """Runs before a handler that reads the store. Raises `ApiError` 503 if the store cannot be read now."""
    response_id = str(request.path_params.get("response_id", ""))
    await server_context(request).store.prepare_read(request_owner(request), response_id)


async def prepare_history(context: ServerContext, owner: str, body: Mapping[str, Any]) -> None:
    """Does the same before a request for a response is parsed, if that reads earlier items."""
    items = body.get("input")
    has_ids = isinstance(items, list) and (
        len(items) > MAX_SEARCHED_ITEMS or any(isinstance(item, dict) and item.get("id") for item in items)
    )
    if has_ids or any(body.get(name) is not None for name in ("previous_response_id", "conversation")):
        previous = body.get("previous_response_id")
        known = previous if isinstance(previous, str) and not has_ids and body.get("conversation") is None else ""
        await context.store.prepare_read(owner, known)


class LoopHistory:
    """A history whose store is used on the event loop only, for a parser that may run in a thread.

    Create it on the event loop.
    """

    def __init__(self, history: History) -> None:
        self._history, self._loop, self._thread_id = history, asyncio.get_running_loop(), threading.get_ident()

    def find_item(self, item_id: str) -> Struct | None:
        """Returns the input or output item with this id."""
        return self._call(self._history.find_item, item_id)

    def items_before_input(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        """Returns the items that precede the input of a request. Raises `ApiError`."""
        return self._call(self._history.items_before_input, body)

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        """Returns the decrypted text of an item."""
        return self._history.decrypt(item)

    def _call(self, read: Callable[..., T], *values: Any) -> T:
        if threading.get_ident() == self._thread_id:
            return read(*values)
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(read(*values))
            except BaseException as error:  # noqa: BLE001  # raised in the thread
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result(MAX_LOOP_WAIT_S)
