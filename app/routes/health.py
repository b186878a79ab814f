"""`/health`: the process lives. `/ready`: it would take a request now. Both are open to all and tell nothing else."""

from typing import Any

import msgspec
from litestar import get, head
from litestar.response import Response

from antiphon.app.context import AnyRequest, House, house
from antiphon.app.routes.replies import json_reply


@get("/health")
async def health() -> Response[Any]:
    """200 as long as the event loop turns."""
    return json_reply(b'{"status":"ok"}')


@head("/health")
async def health_head() -> Response[None]:
    """The same without a body."""
    return Response(None, media_type="text/plain")


@get("/ready")
async def ready(request: AnyRequest) -> Response[Any]:
    """200, or 503 with the reason."""
    reason = not_ready(house(request))
    if reason is None:
        return json_reply(b'{"status":"ready"}')
    return json_reply(msgspec.json.encode({"status": "not ready", "reason": reason}), 503)


@head("/ready")
async def ready_head(request: AnyRequest) -> Response[None]:
    """The same without a body."""
    return Response(None, status_code=200 if not_ready(house(request)) is None else 503, media_type="text/plain")


def not_ready(home: House) -> str | None:
    """Why a request would not be taken, or None."""
    if home.draining:
        return "the server is shutting down"
    for model in home.catalogue.models:
        obstacle = model.engine.unready_reason()
        if obstacle is not None:
            return f"{model.names[0]}: {obstacle}"
    return None
