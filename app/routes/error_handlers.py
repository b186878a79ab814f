"""Converts exceptions to HTTP responses in the API's error format."""

import sqlite3
from typing import Any

import structlog
from litestar import Request
from litestar.exceptions import HTTPException
from litestar.response import Response

from antiphon.app.errors import ApiError, internal_error, shape_error, storage_unavailable
from antiphon.app.http.request_state import request_state
from antiphon.app.route_helpers.http_replies import json_reply

_log = structlog.get_logger(__name__)


def _handle_api_error(request: Request[Any, Any, Any], error: ApiError) -> Response[Any]:
    state = request_state(request.scope)
    state.error_code = error.code or ""
    error = shape_error(error, state.match.endpoint.shape, state.request_id, request.headers)
    reply = json_reply(error.encoded_body, error.status)
    reply.headers.update(dict(error.headers))
    return reply


def _handle_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """Converts errors that litestar itself raises."""
    if "client disconnected" in error.detail:
        message = "The client disconnected before the request body was complete."
        return _handle_api_error(request, ApiError(499, "client_closed_request", message))
    return _handle_api_error(request, ApiError(error.status_code, None, error.detail))


def _handle_store_error(request: Request[Any, Any, Any], error: sqlite3.OperationalError) -> Response[Any]:
    """Answers 503: the store file is full, locked or missing, which is usually temporary."""
    _log.error("store unavailable", request_id=request_state(request.scope).request_id, error=str(error))
    return _handle_api_error(request, storage_unavailable("The response store is unavailable. Retry the request."))


def _handle_unexpected_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Answers 500 for a server bug. The exception's text is logged, never sent."""
    _log.error("unhandled exception in request", request_id=request_state(request.scope).request_id, exc_info=error)
    return _handle_api_error(request, internal_error())


EXCEPTION_HANDLERS: dict[int | type[Exception], Any] = {
    ApiError: _handle_api_error,
    HTTPException: _handle_http_error,
    sqlite3.OperationalError: _handle_store_error,
    Exception: _handle_unexpected_error,
}
