"""The ASGI application: the table of all endpoints, and their handlers behind the request guard."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler

from antiphon.app.context import ServerContext
from antiphon.app.errors import ApiError
from antiphon.app.http.asgi import HeaderPairs
from antiphon.app.http.endpoints.endpoint import Endpoint, declared_endpoint
from antiphon.app.http.endpoints.table import EndpointTable
from antiphon.app.http.middleware import RequestGuard
from antiphon.app.http.request_state import request_state
from antiphon.app.main.table import ENDPOINTS, ROUTE_HANDLERS
from antiphon.app.options.api_keys import ApiKey
from antiphon.app.page.endpoint import PAGE_ENDPOINTS, PageEndpoint
from antiphon.app.route_helpers.faulty_replies import FaultyReplies
from antiphon.app.routes.error_handlers import EXCEPTION_HANDLERS
from antiphon.app.scripted.faults import connect_script_faults
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.websocket.endpoint import CONNECTION_LIFETIME_S, SOCKET_ENDPOINT, WebSocketEndpoint

ENDPOINT_TABLE = EndpointTable((*ENDPOINTS, SOCKET_ENDPOINT, *PAGE_ENDPOINTS))


def build_app(context: ServerContext, on_request_done: Callable[[AccessRecord], None] = lambda _: None) -> RequestGuard:
    """Builds the ASGI application. `on_request_done` receives a record of every request when it ends.

    Raises `ScriptError` for a fault that a script describes wrongly.
    """
    app = Litestar(
        route_handlers=ROUTE_HANDLERS,
        guards=[require_same_endpoint],
        state=State({"context": context, "endpoints": ENDPOINT_TABLE}),
        exception_handlers=EXCEPTION_HANDLERS,
        request_max_body_size=None,  # the request guard limits it
        openapi_config=None,
        logging_config=None,
        debug=False,
    )

    if context.batches is not None:
        context.batches.connect(app, ENDPOINT_TABLE)
    tracer = context.tracer

    def on_done(record: AccessRecord) -> None:
        context.metrics.count_request(record)
        context.audit.record_request(record)
        on_turn_done(record)

    def on_turn_done(record: AccessRecord) -> None:
        if tracer is not None:
            tracer.end_request(record)
        on_request_done(record)

    break_replies = FaultyReplies if connect_script_faults(context.models) else lambda routes: routes
    guard = RequestGuard(
        break_replies(app),
        ENDPOINT_TABLE,
        context.settings,
        on_request_done=on_done,
        websocket_app=break_replies(WebSocketEndpoint(context, CONNECTION_LIFETIME_S, on_turn_done)),
        body_memory=context.body_memory,
        page=PageEndpoint(version("antiphon"), enabled=context.settings.enable_page),
        keys=context.keys,
    )
    guard.check_capacity = _create_capacity_check(context)
    guard.count_reply = context.meter.count_reply
    if tracer is not None:
        guard.begin_trace = tracer.begin_request
    return guard


async def require_same_endpoint(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Raises `ApiError` 404 for another handler than the one whose rights the request guard has checked.

    It is a guard of Litestar, which runs after its routing, for every handler. The two tables never differ, as a test
    shows; if they did, this refuses the request. It is a coroutine, since Litestar runs other guards in a thread.
    """
    if declared_endpoint(handler) is not request_state(connection.scope).match.endpoint:
        raise ApiError(404, "unknown_url", "Unknown request URL. GET /openapi.json lists those that are served.")


def _create_capacity_check(context: ServerContext) -> Callable[[Endpoint, ApiKey], HeaderPairs]:
    """Returns the check of a request whose body has not been read: it returns headers, or raises `ApiError` 429."""

    def check_capacity(endpoint: Endpoint, key: ApiKey) -> HeaderPairs:
        if endpoint.starts is not None:
            context.capacity.check_any()
        if endpoint.is_limited:
            return context.meter.begin_request(key, api="anthropic" if endpoint.shape == "anthropic" else "openai")
        return ()

    return check_capacity
