"""`/health`: the process lives. `/ready`: it would take a request now. Both are open to all and tell nothing else."""

from typing import Any

import msgspec
from litestar import get, head
from litestar.response import Response

from antiphon.app.context import AnyRequest, ServerContext, server_context
from antiphon.app.routes.replies import json_reply


@get("/health")
async def get_health() -> Response[Any]:
    """200 as long as the event loop turns."""
    return json_reply(b'{"status":"ok"}')


@head("/health")
async def head_health() -> Response[None]:
    """The same without a body."""
    return Response(None, media_type="text/plain")


@get("/ready")
async def get_ready(request: AnyRequest) -> Response[Any]:
    """200, or 503 with the reason."""
    reason = unready_reason(server_context(request))
    if reason is None:
        return json_reply(b'{"status":"ready"}')
    return json_reply(msgspec.json.encode({"status": "not ready", "reason": reason}), 503)


@head("/ready")
async def head_ready(request: AnyRequest) -> Response[None]:
    """The same without a body."""
    return Response(
        None, status_code=200 if unready_reason(server_context(request)) is None else 503, media_type="text/plain"
    )


def unready_reason(home: ServerContext) -> str | None:
    """Why a request would not be taken, or None."""
    if home.shutting_down:
        return "the server is shutting down"
    for model in home.models.served:
        obstacle = model.engine.unready_reason()
        if obstacle is not None:
            return f"{model.names[0]}: {obstacle}"
    return None
