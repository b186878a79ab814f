"""The ASGI application and its server: routes, the request guard, uvicorn with deadlines, graceful shutdown.

After the first SIGTERM or SIGINT the server accepts no new connection, and open turns may run for another
`Settings.shutdown_timeout` seconds. Turns that still run then end with a terminal event, so that no stream is cut off.
A second signal exits immediately.
"""

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn

from antiphon.app.context import ServerContext
from antiphon.app.errors import from_engine
from antiphon.app.http.admission import AdmissionController
from antiphon.app.http.asgi import AsgiApp
from antiphon.app.http.headers import MAX_REQUEST_HEADER_BYTES
from antiphon.app.http.middleware import RequestGuard
from antiphon.app.http.protocol import http_protocol_class
from antiphon.app.http.websocket_protocol import websocket_protocol_class
from antiphon.app.lifecycle.handover import HandoverListener
from antiphon.app.lifecycle.process import ServerProcess
from antiphon.app.lifecycle.service_manager import ServiceManager
from antiphon.app.lifecycle.signals import handle_hangup
from antiphon.app.lifecycle.tls import load_ssl_context, reload_certificate
from antiphon.app.main.application import build_app
from antiphon.app.options.serve_options import ServeError
from antiphon.app.registry.model_registry import NamedModel
from antiphon.app.sandbox.report import schedule_proof
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.engine.protocol import EngineError, overloaded_error

if TYPE_CHECKING:
    from antiphon.app.grpc.server import GrpcServer

ACCEPT_SOCKETS = 16
"""Number of listening descriptors for one address. The event loop accepts one connection per descriptor and iteration,
and an iteration is long while many streams run: after a burst of 1 000 connections the next one would wait seconds."""
HANDOVER_DELAY_S = 1.0
"""Least time for which requests on open connections are answered after another process has begun to accept new ones.
Each answer closes its connection."""
MAX_ACCEPTED_WAIT_S = 10.0
"""Longest time that a server waits, after it has stopped to accept connections, for requests on those that it has."""
QUIET_INTERVAL_S = 0.1
"""Time between two looks for requests on open connections."""
QUIET_LOOKS = 2
CLOSE_GRACE_SECONDS = 2.0
"""Seconds after the drain in which the last bytes are sent and the connections close."""

_log = structlog.get_logger(__name__)


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
            guard.table.list_starting(),
            context.capacity.total_free_slots,
            partial(guard.reject_head, error=from_engine(overloaded_error())),
        )
        ssl_context = load_ssl_context(settings)
        super().__init__(
            uvicorn.Config(
                app or guard,
                host=settings.host,
                port=settings.port,
                http=http_protocol_class(settings, admission, guard.table),
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
                h11_max_incomplete_event_size=MAX_REQUEST_HEADER_BYTES,
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
        self._waiting: asyncio.Task[None] | None = None
        self.shares_socket = False
        """True if another process accepts connections from the same socket, now or as soon as this one ends."""
        self.manager = ServiceManager()
        context.begin_drain = self.begin_drain

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Starts to listen, then reports the port."""
        self._bind_grpc()
        context = self._context
        context.usage.start()
        context.turn_manager.continuer.start(
            context.models.served,
            context.settings.continue_within,
            background_only=context.settings.show_uncommitted,
        )
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
        if self.exit_signal is not None:
            self.force_exit = self.should_exit = True
            return
        self.exit_signal = sig
        self.begin_drain()

    def begin_drain(self) -> None:
        """Begins a graceful shutdown: `/ready` answers 503 from now on, and after the delay no connection is accepted.

        Another process may accept connections from the socket that this one was given. It does at once.
        """
        if self._context.draining:
            return
        self._context.draining = True
        self._context.store.report_at_once()  # the others divide the limits of owners without this server
        self.manager.report_stopping()
        self._context.audit.record("drain", "server", "ok", running=self._context.turn_manager.num_running)
        delay = self._context.settings.drain_delay
        if self.shares_socket:
            self._stop_accepting()
            delay = max(delay, HANDOVER_DELAY_S)
        self._guard.closes_connections = delay > 0  # a client that connects again reaches another server
        if delay:
            self._waiting = asyncio.create_task(self._wait_for_requests(delay), name="drain-delay")
        else:
            self.should_exit = True

    def connect_process(self, process: ServerProcess) -> None:
        """Connects the server with its service manager, with the origin of its socket, and with SIGHUP."""
        self.manager, self.shares_socket = process.manager, process.is_inherited
        handle_hangup(partial(self.handle_exit, signal.SIGTERM, None), partial(_reload, self._context, self.manager))

    def hand_over(self) -> None:
        """Begins a graceful shutdown, since another process accepts connections from the same socket now."""
        self.shares_socket = True
        self.begin_drain()

    async def _wait_for_requests(self, delay: float) -> None:
        """Ends the server after a delay, and once requests on connections that it has accepted are being answered.

        New turns are refused from then on, which a client that has connected here could not know.
        """
        deadline = time.monotonic() + delay + MAX_ACCEPTED_WAIT_S
        await asyncio.sleep(delay)
        self._stop_accepting()
        num_quiet = 0
        while num_quiet < QUIET_LOOKS and time.monotonic() < deadline and not self.should_exit:
            await asyncio.sleep(QUIET_INTERVAL_S)
            is_busy = any(getattr(connection, "is_active", False) for connection in self.server_state.connections)
            num_quiet = 0 if is_busy else num_quiet + 1
        self.should_exit = True

    def _stop_accepting(self) -> None:
        for server in self.servers:
            server.close()

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        """Stops accepting connections, ends the turns, then lets uvicorn close the connections."""
        self._context.shutting_down = self._context.draining = True
        self._stop_accepting()
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


async def run_server(
    context: ServerContext,
    listener: socket.socket,
    *,
    on_ready: Callable[[int], None],
    on_request_done: Callable[[AccessRecord], None],
    process: ServerProcess = ServerProcess(),  # noqa: B008  # nothing of it changes
) -> int | None:
    """Serves until a signal arrives, which it returns. Closes the engines at the end.

    Calls `on_ready` with the port when all engines have started. Raises `EngineError` if one cannot start.
    """
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = AntiphonServer(context, build_app(context, on_request_done), listening.set_result)
    server.connect_process(process)
    starting = asyncio.gather(*(model.engine.start() for model in context.models.all_models))
    handover = HandoverListener(listener, server.hand_over)

    async def load() -> None:
        try:
            await starting
            on_ready(await listening)
            await process.finish_start()
            if process.can_be_replaced:
                handover.start()
            await process.keep_alive()
        except EngineError:
            if server.should_exit:  # shutdown began during the start and caused the error
                return
            server.should_exit = True
            raise

    loading = asyncio.create_task(load(), name="engine-start")
    watching = asyncio.create_task(context.reloader.watch(), name="reload-watch")
    proof = schedule_proof(with_templates=context.settings.trust_request_chat_template)
    try:
        if process.predecessor is not None:  # it accepts connections until the engines here are ready
            await asyncio.wait({starting})
        if not (starting.done() and starting.exception()):
            await server.serve([listener])
        if loading.done() or (starting.done() and starting.exception()):
            await loading
    finally:
        proof.cancel()
        watching.cancel()
        loading.cancel()
        await asyncio.wait({loading, watching})
        await handover.close()
        await _close_engines(context.models.all_models)
    return server.exit_signal


async def _close_engines(models: Iterable[NamedModel]) -> None:
    for model in models:
        await model.engine.close()


async def _reload(context: ServerContext, manager: ServiceManager) -> None:
    """Reads files again, and tells the service manager so."""
    manager.report_reload()
    await context.reloader.reload()
    manager.report_ready()
