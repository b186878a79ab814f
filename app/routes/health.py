"""`/health`: the process is running. `/ready`: it accepts requests now. Neither needs an API key."""

from typing import Any

import msgspec
from litestar import get
from litestar.response import Response

from antiphon.app.context import AnyRequest, ServerContext, server_context
from antiphon.app.models.status import blocked_reason
from antiphon.app.routes.replies import json_reply


@get("/health")
async def get_health() -> Response[Any]:
    """Returns 200 as long as the event loop runs."""
    return json_reply(b'{"status":"ok"}')


@get("/ready")
async def get_ready(request: AnyRequest) -> Response[Any]:
    """Returns 200, or 503 with the reason why the server is not ready."""
    reason = unready_reason(server_context(request))
    if reason is None:
        return json_reply(b'{"status":"ready"}')
    return json_reply(msgspec.json.encode({"status": "not ready", "reason": reason}), 503)


def unready_reason(context: ServerContext) -> str | None:
    """Returns the reason why the server would not accept a request now, or None."""
    if context.shutting_down:
        return "the server is shutting down"
    for model in context.models.all_models:
        reason = blocked_reason(model.engine)
        if reason is not None:
            return f"{model.names[0]}: {reason}"
    return None
