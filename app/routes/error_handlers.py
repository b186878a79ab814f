"""Exceptions as HTTP answers in the API's error shape."""

import sqlite3
from typing import Any

import structlog
from litestar import Request
from litestar.exceptions import HTTPException
from litestar.response import Response
from litestar.routes import HTTPRoute

from antiphon.app.errors import ApiError, clip_text
from antiphon.app.http.request_state import request_state
from antiphon.app.routes.replies import json_reply

_log = structlog.get_logger(__name__)


def _handle_api_error(_: Request[Any, Any, Any], error: ApiError) -> Response[Any]:
    reply = json_reply(error.encoded_body, error.status)
    reply.headers.update(dict(error.headers))
    return reply


def _handle_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """What litestar itself answers: paths and methods that nothing is at."""
    where = f"{request.method} {clip_text(request.url.path)}"
    if error.status_code == 404:
        found = ApiError(404, "unknown_url", f"Unknown request URL: {where}.")
    elif error.status_code == 405:
        allowed = (("allow", ", ".join(_allowed_methods(request))),)
        found = ApiError(405, "method_not_allowed", f"Not allowed: {where}.", headers=allowed)
    elif "client disconnected" in error.detail:
        found = ApiError(499, "client_closed_request", "The client left before its body had come.")
    else:
        found = ApiError(error.status_code, None, error.detail)
    return _handle_api_error(request, found)


def _handle_store_error(request: Request[Any, Any, Any], error: sqlite3.OperationalError) -> Response[Any]:
    """The file is full, locked, or gone: that passes, and may be tried again."""
    _log.error("store unavailable", request_id=request_state(request.scope).request_id, error=str(error))
    retry = (("retry-after", "1"),)
    return _handle_api_error(
        request, ApiError(503, "storage_unavailable", "The store cannot be used now.", headers=retry)
    )


def _handle_unexpected_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """A fault of ours. Its words stay in the log."""
    _log.error("unhandled exception in request", request_id=request_state(request.scope).request_id, exc_info=error)
    message = "The server had an error while processing your request."
    return _handle_api_error(request, ApiError(500, "server_error", message))


def _allowed_methods(request: Request[Any, Any, Any]) -> list[str]:
    """The methods that are allowed where this request went."""
    asked = request.url.path.strip("/").split("/")
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, HTTPRoute) and len(route.path_components) == len(asked):
            pairs = zip(route.path_components, asked, strict=True)
            if all(not isinstance(part, str) or part == said for part, said in pairs):
                found |= set(route.methods)
    return sorted(found)


EXCEPTION_HANDLERS: dict[int | type[Exception], Any] = {
    ApiError: _handle_api_error,
    HTTPException: _handle_http_error,
    sqlite3.OperationalError: _handle_store_error,
    Exception: _handle_unexpected_error,
}
