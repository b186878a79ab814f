"""Reads of the store by requests: waits for a database that is away, so that the event loop does not."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from antiphon.app.context import AnyRequest, ServerContext, request_owner, server_context
from antiphon.app.http.body_parsing import run_parser
from antiphon.app.store.history.bounded_read import bound_read
from antiphon.app.turns.stored_history import StoredHistory

T = TypeVar("T")
ReadRequest = Callable[[StoredHistory], T]

MAX_SEARCHED_ITEMS = 500
"""Number of items that are searched for ids. More may well have one."""


async def prepare_read(request: AnyRequest) -> None:
    """Runs before a handler that reads the store. Raises `ApiError` 503 if the store cannot be read now."""
    response_id = str(request.path_params.get("response_id", ""))
    await server_context(request).store.prepare_read(request_owner(request), response_id)


async def read_with_history(
    context: ServerContext, owner: str, body: Mapping[str, Any], body_bytes: int, read: ReadRequest[T]
) -> T:
    """Returns the result of `read`, which gets the history of the owner and may run in a thread.

    It runs in a thread of its own kind if it reads earlier items, which may be thousands. Raises its errors, and
    `ApiError` 503 if the store cannot be read now.
    """
    reads_history = await _prepare_history(context, owner, body)
    history = StoredHistory(context.store, owner, context.turn_manager.sealer)
    return await bound_read(run_parser(body_bytes, read, history, reads_history=reads_history))


async def _prepare_history(context: ServerContext, owner: str, body: Mapping[str, Any]) -> bool:
    """Waits until the store can be read, and returns True, if a request reads earlier items."""
    items = body.get("input", body.get("items"))
    has_ids = isinstance(items, list) and (
        len(items) > MAX_SEARCHED_ITEMS or any(isinstance(item, dict) and item.get("id") for item in items)
    )
    if not has_ids and all(body.get(name) is None for name in ("previous_response_id", "conversation")):
        return False
    previous = body.get("previous_response_id")
    known = previous if isinstance(previous, str) and not has_ids and body.get("conversation") is None else ""
    await context.store.prepare_read(owner, known)
    return True
