"""`/v1/admin`: acts on the server itself, for the keys of operators and the key of the server's runtime file."""

from typing import Any

import msgspec
from litestar import post
from litestar.response import Response

from antiphon.app.context import AnyRequest, server_context
from antiphon.app.replies.http_replies import json_reply


@post("/v1/admin/reload", status_code=200)
async def reload_files(request: AnyRequest) -> Response[Any]:
    """Reads the file of API keys and the TLS certificate again. What cannot be used is in `faults`."""
    report = await server_context(request).reloader.reload()
    return json_reply({"object": "reload", **msgspec.to_builtins(report)})


@post("/v1/admin/drain", status_code=200)
async def drain_server(request: AnyRequest) -> Response[Any]:
    """Begins a graceful shutdown, as SIGTERM does."""
    context = server_context(request)
    context.begin_drain()
    return json_reply({"object": "drain", "running": context.turn_manager.num_running})
