"""The ASGI application: routes behind the request guard, with its checks of capacity and limits."""

from collections.abc import Callable
from importlib.metadata import version

from litestar import Litestar
from litestar.datastructures import State

from antiphon.app.base.access_record import AccessRecord
from antiphon.app.base.api_keys import ApiKey
from antiphon.app.base.errors import MESSAGES_PATH
from antiphon.app.context import ServerContext
from antiphon.app.http.admission import GENERATION_PATHS
from antiphon.app.http.asgi import AsgiScope, HeaderPairs
from antiphon.app.http.middleware import RequestGuard
from antiphon.app.page.endpoint import PageEndpoint
from antiphon.app.replies.faulty_replies import FaultyReplies
from antiphon.app.routes.error_handlers import EXCEPTION_HANDLERS
from antiphon.app.routes.table import ROUTE_HANDLERS
from antiphon.app.scripted.faults import connect_script_faults
from antiphon.app.websocket.endpoint import CONNECTION_LIFETIME_S, WebSocketEndpoint

LIMITED_PATHS = frozenset(
    {*GENERATION_PATHS, "/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score"}
)
"""Paths on which a POST counts as a request of its API key."""


def build_app(context: ServerContext, on_request_done: Callable[[AccessRecord], None] = lambda _: None) -> RequestGuard:
    """Builds the ASGI application. `on_request_done` receives a record of every request when it ends.

    Raises `ScriptError` for a fault that a script describes wrongly.
    """
    app = Litestar(
        route_handlers=ROUTE_HANDLERS,
        state=State({"context": context}),
        exception_handlers=EXCEPTION_HANDLERS,
        request_max_body_size=None,  # the request guard limits it
        openapi_config=None,
        logging_config=None,
        debug=False,
    )

    if context.batches is not None:
        context.batches.connect(app)
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
        context.settings,
        on_done,
        check_capacity=_create_capacity_check(context),
        websocket_app=break_replies(WebSocketEndpoint(context, CONNECTION_LIFETIME_S, on_turn_done)),
        body_memory=context.body_memory,
        page=PageEndpoint(version("antiphon"), enabled=context.settings.enable_page),
        keys=context.keys,
    )
    guard.count_reply = context.meter.count_reply
    if tracer is not None:
        guard.begin_trace = tracer.begin_request
    return guard


def _create_capacity_check(context: ServerContext) -> Callable[[AsgiScope, ApiKey], HeaderPairs]:
    """Returns the check of a request whose body has not been read: it returns headers, or raises `ApiError` 429."""

    def check_capacity(scope: AsgiScope, key: ApiKey) -> HeaderPairs:
        path = scope["path"]
        if path in GENERATION_PATHS:
            context.capacity.check_any()
        if path in LIMITED_PATHS:
            return context.meter.begin_request(key, api="anthropic" if path == MESSAGES_PATH else "openai")
        return ()

    return check_capacity
