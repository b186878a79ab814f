"""Waits for a database that is slow or away before a request reads from it, so that the event loop does not wait."""

from collections.abc import Mapping
from typing import Any

from antiphon.app.context import AnyRequest, ServerContext, request_owner, server_context


async def prepare_read(request: AnyRequest) -> None:
    """Runs before a handler that reads the store. Raises `ApiError` 503 if the store cannot be read now."""
    response_id = str(request.path_params.get("response_id", ""))
    await server_context(request).store.prepare_read(request_owner(request), response_id)


async def prepare_history(context: ServerContext, owner: str, body: Mapping[str, Any]) -> None:
    """Does the same before a request for a response is parsed, if that reads earlier items."""
    items = body.get("input")
    has_ids = isinstance(items, list) and any(isinstance(item, dict) and item.get("id") for item in items)
    if has_ids or any(body.get(name) is not None for name in ("previous_response_id", "conversation")):
        previous = body.get("previous_response_id")
        known = previous if isinstance(previous, str) and not has_ids and body.get("conversation") is None else ""
        await context.store.prepare_read(owner, known)
