"""`/openapi.json`: the OpenAPI document. It needs no API key, as in vLLM: it holds nothing that the operator chose."""

import asyncio
import functools
from typing import Any

import msgspec
from litestar import Litestar
from litestar.response import Response

from antiphon.app.context import AnyRequest, server_context
from antiphon.app.http.endpoints.endpoint import Key, endpoint
from antiphon.app.openapi.document import build_document
from antiphon.app.route_helpers.http_replies import json_reply


@endpoint("GET", "/openapi.json", key=Key.NONE, traced=False)
async def get_openapi_document(request: AnyRequest) -> Response[Any]:
    """Returns the OpenAPI document of this server."""
    needs_key = server_context(request).settings.requires_key
    return json_reply(await asyncio.to_thread(encode_document, request.app, needs_key=needs_key))


@functools.lru_cache(maxsize=1)
def encode_document(app: Litestar, *, needs_key: bool) -> bytes:
    """Returns the document as JSON. It is built once, when it is first requested."""
    return msgspec.json.encode(build_document(app.routes, needs_key=needs_key))
