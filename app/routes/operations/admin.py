"""`/v1/admin`: acts on the server itself, for the keys of operators and the key of the server's runtime file."""

from typing import Any

import msgspec
from litestar.response import Response

from antiphon.app.context import AnyRequest, server_context
from antiphon.app.http.endpoints.endpoint import Key, endpoint
from antiphon.app.route_helpers.http_replies import json_reply


@endpoint("POST", "/v1/admin/reload", key=Key.OPERATOR, audit="reload")
async def reload_files(request: AnyRequest) -> Response[Any]:
    """Reads the file of API keys and the TLS certificate again. What cannot be used is in `faults`."""
    report = await server_context(request).reloader.reload()
    return json_reply({"object": "reload", **msgspec.to_builtins(report)})


@endpoint("POST", "/v1/admin/drain", key=Key.OPERATOR, audit="drain")
async def drain_server(request: AnyRequest) -> Response[Any]:
    """Begins a graceful shutdown, as SIGTERM does."""
    context = server_context(request)
    context.begin_drain()
    return json_reply({"object": "drain", "running": context.turn_manager.num_running})
