"""The ASGI application and its server: routes, the request guard, uvicorn with deadlines, graceful shutdown.

After the first SIGTERM or SIGINT the server accepts no new connection, and open turns may run for another
`Settings.shutdown_timeout` seconds. Turns that still run then end with a terminal event, so that no stream is cut off.
A second signal exits immediately.
"""

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn
from litestar import Litestar
from litestar.datastructures import State

from antiphon.app.base.access_record import AccessRecord
from antiphon.app.base.api_keys import ApiKey
from antiphon.app.base.errors import MESSAGES_PATH, ApiError, from_engine
from antiphon.app.base.settings import Settings
from antiphon.app.context import ServerContext
from antiphon.app.http.admission import GENERATION_PATHS, AdmissionController
from antiphon.app.http.asgi import AsgiApp, AsgiScope, HeaderPairs
from antiphon.app.http.middleware import MAX_HEADER_BYTES, RequestGuard
from antiphon.app.http.protocol import http_protocol_class
from antiphon.app.http.websocket_protocol import websocket_protocol_class
from antiphon.app.keys.reloader import Reloader, ReloadReport
from antiphon.app.model_registry import NamedModel
from antiphon.app.page.endpoint import PageEndpoint
from antiphon.app.replies.faulty_replies import FaultyReplies
from antiphon.app.routes.error_handlers import EXCEPTION_HANDLERS
from antiphon.app.routes.table import ROUTE_HANDLERS
from antiphon.app.sandbox.report import schedule_proof
from antiphon.app.scripted.faults import connect_script_faults
from antiphon.app.serve_options import ServeError
from antiphon.app.tls import load_ssl_context, reload_certificate
from antiphon.app.websocket.endpoint import CONNECTION_LIFETIME_S, WebSocketEndpoint
from antiphon.engine.protocol import EngineError, overloaded_error

if TYPE_CHECKING:
    from antiphon.app.grpc.server import GrpcServer

ACCEPT_SOCKETS = 16
"""Number of listening descriptors for one address. The event loop accepts one connection per descriptor and iteration,
and an iteration is long while many streams run: after a burst of 1 000 connections the next one would wait seconds."""
LIMITED_PATHS = frozenset(
    {*GENERATION_PATHS, "/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score"}
)
"""Paths on which a POST counts as a request of its API key."""
CLOSE_GRACE_SECONDS = 2.0
"""Seconds after the drain in which the last bytes are sent and the connections close."""

_log = structlog.get_logger(__name__)


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
    if tracer is not None:
        guard.begin_trace = tracer.begin_request
    return guard


def _create_capacity_check(context: ServerContext) -> Callable[[AsgiScope, ApiKey], HeaderPairs]:
    """Returns the check of a request whose body has not been read: it returns headers, or raises `ApiError` 429."""

    def check_capacity(scope: AsgiScope, key: ApiKey) -> HeaderPairs:
        path = scope["path"]
        if path in GENERATION_PATHS:
            try:
                context.capacity.check_any()
            except ApiError:
                context.meter.count_rejection(key)
                raise
        if path in LIMITED_PATHS:
            return context.meter.begin_request(key, api="anthropic" if path == MESSAGES_PATH else "openai")
        return ()

    return check_capacity


class AntiphonServer(uvicorn.Server):
    """A uvicorn server that drains the turns before it waits for the connections to close.

    `on_listening` receives the port once the server listens. `app`: the application to serve, if it wraps `guard`.
    """

    def __init__(
        self,
        context: ServerContext,
        guard: RequestGuard,
        on_listening: Callable[[int], None] = lambda _: None,
        app: AsgiApp | None = None,
    ) -> None:
        settings = context.settings
        admission = AdmissionController(
            context.capacity.total_free_slots, partial(guard.reject_head, error=from_engine(overloaded_error()))
        )
        ssl_context = load_ssl_context(settings)
        super().__init__(
            uvicorn.Config(
                app or guard,
                host=settings.host,
                port=settings.port,
                http=http_protocol_class(settings, admission),
                ws=websocket_protocol_class(settings) if settings.enable_websocket else "none",
                ssl_context_factory=(lambda *_: ssl_context) if ssl_context else None,
                ws_max_size=settings.max_body_bytes,
                ws_per_message_deflate=False,  # each token is a separate frame
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
        if ssl_context is not None:
            files = [path for path in (settings.ssl_certfile, settings.ssl_keyfile) if path is not None]
            context.reloader.add_certificate(files, partial(reload_certificate, ssl_context, settings))
        self._context, self._on_listening = context, on_listening
        self._guard = guard
        self._grpc: GrpcServer | None = None
        self.exit_signal: int | None = None
        """The signal that ended the server."""

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Starts to listen, then reports the port."""
        self._bind_grpc()
        context = self._context
        context.usage.start()
        context.turn_manager.continuer.start(context.models.served, context.settings.continue_within)
        listeners = [
            listener
            for original in sockets or ()
            for listener in (original, *(original.dup() for _ in range(ACCEPT_SOCKETS - 1)))
        ]
        await super().startup(listeners or None)
        if self.started:
            if self._context.batches is not None:
                self._context.batches.start()
            if self._grpc is not None:
                await self._grpc.start()
                self._context.grpc_ports = self._grpc.ports
            self._on_listening(self.servers[0].sockets[0].getsockname()[1])

    def _bind_grpc(self) -> None:
        """Binds the port of gRPC, if the settings have one. Raises `ServeError`.

        It runs before HTTP is served: a server whose start fails must never have been ready.
        """
        if self._context.settings.grpc_port is None:
            return
        from antiphon.app.grpc.server import GrpcServer  # noqa: PLC0415  grpcio is an optional dependency

        try:
            self._grpc = GrpcServer(self._context, self._guard)
        except OSError as error:
            raise ServeError(str(error)) from None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as in uvicorn
        """Handles a signal: the first begins a graceful shutdown, the second forces the exit."""
        # uvicorn's own handler notes the signal, to raise it at the end of `serve`: the store would not be closed.
        self._context.shutting_down = True
        self.force_exit = self.should_exit
        self.should_exit, self.exit_signal = True, self.exit_signal or sig

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        """Stops accepting connections, ends the turns, then lets uvicorn close the connections."""
        self._context.shutting_down = True
        for server in self.servers:
            server.close()
        timeout_s = self._context.settings.shutdown_timeout + CLOSE_GRACE_SECONDS
        grpc_end = asyncio.create_task(self._grpc.stop(timeout_s)) if self._grpc is not None else None
        models = self._context.models.all_models
        if self._context.batches is not None:
            await self._context.batches.close()
        # Engines that are not ready close first, so that requests waiting for one fail immediately.
        unready = [model for model in models if model.engine.unready_reason()]
        await self._context.turn_manager.hand_over([model.engine for model in unready])
        await _close_engines(unready)
        drain = asyncio.create_task(self._context.turn_manager.drain(self._context.settings.shutdown_timeout))
        while not drain.done() and not self.force_exit:
            await asyncio.wait({drain}, timeout=0.1)
        drain.cancel()
        await super().shutdown(sockets)
        await self._context.usage.close()
        if grpc_end is not None and not self.force_exit:
            await grpc_end
        if self._context.tracer is not None:
            await asyncio.to_thread(self._context.tracer.close)
        await _close_engines(models)


def bind_socket(settings: Settings) -> socket.socket:
    """Returns a socket that is bound to the configured address but does not listen. Raises `ServeError`."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise ServeError(f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another --port") from None
    return listener


async def run_server(
    context: ServerContext,
    listener: socket.socket,
    *,
    on_ready: Callable[[int], None],
    on_request_done: Callable[[AccessRecord], None],
) -> int | None:
    """Serves until a signal arrives, which it returns; starts the engines in parallel. Closes the engines at the end.

    Calls `on_ready` with the port when all engines have started. Raises `EngineError` if one cannot start.
    """
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = AntiphonServer(context, build_app(context, on_request_done), listening.set_result)
    _handle_hangup(server, context.reloader)

    async def load() -> None:
        try:
            await asyncio.gather(*(model.engine.start() for model in context.models.all_models))
            on_ready(await listening)
        except EngineError:
            if server.should_exit:  # shutdown began during the start and caused the error
                return
            server.should_exit = True
            raise

    loading = asyncio.create_task(load(), name="engine-start")
    watching = asyncio.create_task(context.reloader.watch(), name="reload-watch")
    proof = schedule_proof(with_templates=context.settings.trust_request_chat_template)
    try:
        await server.serve([listener])
        if loading.done():
            loading.result()
    finally:
        proof.cancel()
        watching.cancel()
        loading.cancel()
        await asyncio.wait({loading, watching})
        await _close_engines(context.models.all_models)
    return server.exit_signal


def _handle_hangup(server: AntiphonServer, reloader: Reloader) -> None:
    """Makes SIGHUP end a server that runs in a terminal, as SIGTERM does, because its terminal was closed.

    Other servers read their files again, as service managers expect of it.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    in_terminal = sys.stderr is not None and sys.stderr.isatty()
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[ReloadReport]] = set()

    def handle() -> None:
        if in_terminal:
            server.handle_exit(signal.SIGTERM, None)
            return
        reload = loop.create_task(reloader.reload(), name="reload")
        reloads.add(reload)
        reload.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, handle)


async def _close_engines(models: Iterable[NamedModel]) -> None:
    for model in models:
        await model.engine.close()
