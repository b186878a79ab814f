"""The application and the process around it: routes behind the gate, uvicorn with deadlines, an end that is an end.

On the first SIGTERM or SIGINT no new connection is taken and open turns may go on for `Settings.drain` seconds; what
still runs then is ended with a terminal event, so that no stream just breaks off. A second signal ends at once.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any

import structlog
import uvicorn
from litestar import Litestar
from litestar.datastructures import State

from antiphon.app.context import ServerContext
from antiphon.app.errors import from_engine
from antiphon.app.http.admission import GENERATION_PATHS, AdmissionController
from antiphon.app.http.asgi import AsgiApp
from antiphon.app.http.middleware import MAX_HEADER_BYTES, RequestGuard
from antiphon.app.http.protocol import http_protocol_class
from antiphon.app.http.websocket_protocol import websocket_protocol_class
from antiphon.app.model_registry import ServedModel
from antiphon.app.observability.access_log import AccessRecord
from antiphon.app.routes import chat, compact, conversations, health, metrics, models, responses
from antiphon.app.routes.error_handlers import EXCEPTION_HANDLERS
from antiphon.app.routes.websocket import CONNECTION_LIFETIME_S, WebSocketEndpoint
from antiphon.app.settings import Settings
from antiphon.engine.protocol import EngineError, overloaded_error

ACCEPT_SOCKETS = 16
"""Descriptors under which an address is listened on. The event loop takes one connection of each in a turn, and a turn
is long while many streams run: behind a thousand who connect at once the next one would wait for seconds."""
CLOSE_GRACE_SECONDS = 2.0
"""After the drain: for the last bytes to leave and the connections to close."""

ROUTE_HANDLERS = (
    responses.create_response,
    responses.count_input_tokens,
    compact.compact_conversation,
    responses.retrieve_response,
    responses.delete_response,
    responses.cancel_response,
    responses.list_input_items,
    conversations.create_conversation,
    conversations.retrieve_conversation,
    conversations.update_conversation,
    conversations.delete_conversation,
    conversations.create_items,
    conversations.list_items,
    conversations.retrieve_item,
    conversations.delete_item,
    chat.create_chat_completion,
    models.list_models,
    models.retrieve_model,
    models.get_version,
    models.list_ollama_tags,
    metrics.get_metrics,
    health.get_health,
    health.head_health,
    health.get_ready,
    health.head_ready,
)

_log = structlog.get_logger(__name__)


def build_app(home: ServerContext, on_request_done: Callable[[AccessRecord], None] = lambda _: None) -> RequestGuard:
    """The whole ASGI application. `told` hears of every request when it is over."""
    app = Litestar(
        route_handlers=ROUTE_HANDLERS,
        state=State({"house": home}),
        exception_handlers=EXCEPTION_HANDLERS,
        request_max_body_size=None,  # the gate counts
        openapi_config=None,
        logging_config=None,
        debug=False,
    )

    def heard(line: AccessRecord) -> None:
        home.metrics.count_request(line)
        on_request_done(line)

    return RequestGuard(
        app,
        home.settings,
        heard,
        check_capacity=partial(_check_capacity, home),
        websocket_app=WebSocketEndpoint(home, CONNECTION_LIFETIME_S),
    )


def _check_capacity(home: ServerContext, path: str) -> None:
    """Raise `ApiError` 429 for a turn too many, where that is clear before anybody knows the model it is for."""
    if path in GENERATION_PATHS and home.models.served and not _free_slots(home):
        raise from_engine(overloaded_error())


def _free_slots(home: ServerContext) -> int:
    """How many turns more could be opened, of whatever models."""
    return sum(max(home.turn_manager.free_slots(model.engine), 0) for model in home.models.served)


class AntiphonServer(uvicorn.Server):
    """uvicorn, which drains the turns before it waits for the connections. `ready` hears the port once it listens.

    `app` is what answers if it is more than the gate.
    """

    def __init__(
        self,
        context: ServerContext,
        gate: RequestGuard,
        on_listening: Callable[[int], None] = lambda _: None,
        app: AsgiApp | None = None,
    ) -> None:
        settings = context.settings
        crowd = AdmissionController(
            partial(_free_slots, context), partial(gate.reject_head, error=from_engine(overloaded_error()))
        )
        super().__init__(
            uvicorn.Config(
                app or gate,
                host=settings.host,
                port=settings.port,
                http=http_protocol_class(settings, crowd),
                ws=websocket_protocol_class(settings) if settings.enable_websocket else "none",
                ws_max_size=settings.max_body_bytes,
                ws_per_message_deflate=False,  # each token is a frame of its own
                loop="uvloop",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(settings.idle_timeout),
                timeout_graceful_shutdown=int(CLOSE_GRACE_SECONDS),
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            )
        )
        self._context, self._on_listening = context, on_listening

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Listen, then say so."""
        doors = [twin for each in sockets or () for twin in (each, *(each.dup() for _ in range(ACCEPT_SOCKETS - 1)))]
        await super().startup(doors or None)
        if self.started:
            self._on_listening(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first asks, the second insists."""
        self._context.shutting_down = True
        if self.should_exit:
            sig = signal.SIGINT  # uvicorn leaves at once on a second one of these only
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        """Take no more connections, end the turns, then let uvicorn see the connections off."""
        self._context.shutting_down = True
        for server in self.servers:
            server.close()
        models = self._context.models.served
        await _close_engines(
            [model for model in models if model.engine.unready_reason()]
        )  # whoever waits for it is told so
        drained = asyncio.create_task(self._context.turn_manager.drain(self._context.settings.shutdown_timeout))
        while not drained.done() and not self.force_exit:
            await asyncio.wait({drained}, timeout=0.1)
        drained.cancel()
        await super().shutdown(sockets)
        await _close_engines(models)


class BindError(OSError):
    """The address cannot be listened on; the message is one line for a person."""


def bind_socket(settings: Settings) -> socket.socket:
    """The address, taken but not yet listened on. Raises `BindError`."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise BindError(f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another --port") from None
    return listener


async def run_server(
    home: ServerContext,
    listener: socket.socket,
    *,
    on_ready: Callable[[int], None],
    on_request_done: Callable[[AccessRecord], None],
) -> None:
    """Serve until a signal comes. The engines start meanwhile; `ready` hears the port when they have.

    Raises `EngineError` where one cannot start. At the end they are closed.
    """
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = AntiphonServer(home, build_app(home, on_request_done), listening.set_result)

    async def load() -> None:
        try:
            await asyncio.gather(*(model.engine.start() for model in home.models.served))
            on_ready(await listening)
        except EngineError:
            if server.should_exit:  # it was told to go meanwhile, and that is why
                return
            server.should_exit = True
            raise

    loading = asyncio.create_task(load(), name="engine-start")
    try:
        await server.serve([listener])
        if loading.done():
            loading.result()
    finally:
        loading.cancel()
        await asyncio.wait({loading})
        await _close_engines(home.models.served)


async def _close_engines(models: Iterable[ServedModel]) -> None:
    for model in models:
        await model.engine.close()
