"""The application and the process around it: routes behind the gate, uvicorn with deadlines, an end that is an end.

On the first SIGTERM or SIGINT no new connection is taken and open turns may go on for `Settings.drain` seconds; what
still runs then is ended with a terminal event, so that no stream just breaks off. A second signal ends at once.
"""

import asyncio
import signal
import socket
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any

import structlog
import uvicorn
from litestar import Litestar, Request
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.response import Response
from litestar.routes import HTTPRoute

from antiphon.app.context import House
from antiphon.app.encryption import open_seals
from antiphon.app.errors import ApiError, clip, from_engine
from antiphon.app.http.admission import TURNS, Crowd
from antiphon.app.http.asgi import App
from antiphon.app.http.middleware import HEADER_BYTES, Gate, Line
from antiphon.app.http.protocol import protocol, socket_protocol
from antiphon.app.model_registry import Catalogue, ServedModel
from antiphon.app.observability.metrics import Metrics
from antiphon.app.routes import chat, compact, conversations, health, metrics, models, responses
from antiphon.app.routes.replies import json_reply
from antiphon.app.routes.websocket import LIFETIME as SOCKET_LIFETIME
from antiphon.app.routes.websocket import Socket
from antiphon.app.settings import Settings
from antiphon.app.store.base import Store
from antiphon.app.store.memory import MemoryStore
from antiphon.app.turns.manager import Turns
from antiphon.app.turns.turn import Pace
from antiphon.engine.protocol import EngineError, overloaded_error

DOORS = 16
"""Descriptors under which an address is listened on. The event loop takes one connection of each in a turn, and a turn
is long while many streams run: behind a thousand who connect at once the next one would wait for seconds."""
LAST_SECONDS = 2.0
"""After the drain: for the last bytes to leave and the connections to close."""

_log = structlog.get_logger("antiphon.server")


def furnish(settings: Settings, catalogue: Catalogue, pace: Pace | None = None, store: Store | None = None) -> House:
    """A house. `pace`: how patient its turns are, None: as usual; `store`: None is one in memory.

    Raises `SecretError`.
    """
    store = MemoryStore() if store is None else store
    seals = open_seals(settings.encryption_key_path)
    counted = Metrics(catalogue.models)
    turns = Turns(store, reasoning_as=settings.reasoning_output, pace=pace or Pace(), seals=seals, watch=counted)
    return House(settings=settings, catalogue=catalogue, turns=turns, store=store, metrics=counted)


def build(home: House, told: Callable[[Line], None] = lambda _: None) -> Gate:
    """The whole ASGI application. `told` hears of every request when it is over."""
    app = Litestar(
        route_handlers=[
            responses.create,
            responses.input_tokens,
            compact.compact,
            responses.retrieve,
            responses.forget,
            responses.cancel,
            responses.input_items,
            *(
                conversations.create,
                conversations.retrieve,
                conversations.update,
                conversations.forget,
                conversations.add,
                conversations.list_items,
                conversations.retrieve_item,
                conversations.remove,
            ),
            chat.create,
            models.listing,
            models.one,
            models.version,
            models.tags,
            metrics.metrics,
            health.health,
            health.health_head,
            health.ready,
            health.ready_head,
        ],
        state=State({"house": home}),
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            sqlite3.OperationalError: _store_error,
            Exception: _our_error,
        },
        request_max_body_size=None,  # the gate counts
        openapi_config=None,
        logging_config=None,
        debug=False,
    )

    def heard(line: Line) -> None:
        home.metrics.http(line)
        told(line)

    return Gate(app, home.settings, heard, room=partial(_check_room, home), socket=Socket(home, SOCKET_LIFETIME))


def _check_room(home: House, path: str) -> None:
    """Raise `ApiError` 429 for a turn too many, where that is clear before anybody knows the model it is for."""
    if path in TURNS and home.catalogue.models and not _free(home):
        raise from_engine(overloaded_error())


def _free(home: House) -> int:
    """How many turns more could be opened, of whatever models."""
    return sum(max(home.turns.free(model.engine), 0) for model in home.catalogue.models)


class Server(uvicorn.Server):
    """uvicorn, which drains the turns before it waits for the connections. `ready` hears the port once it listens.

    `app` is what answers if it is more than the gate.
    """

    def __init__(
        self, home: House, gate: Gate, ready: Callable[[int], None] = lambda _: None, app: App | None = None
    ) -> None:
        settings = home.settings
        crowd = Crowd(partial(_free, home), partial(gate.turn_away, error=from_engine(overloaded_error())))
        super().__init__(
            uvicorn.Config(
                app or gate,
                host=settings.host,
                port=settings.port,
                http=protocol(settings, crowd),
                ws=socket_protocol(settings) if settings.enable_websocket else "none",
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
                timeout_graceful_shutdown=int(LAST_SECONDS),
                h11_max_incomplete_event_size=HEADER_BYTES,
            )
        )
        self._home, self._ready = home, ready

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Listen, then say so."""
        doors = [twin for each in sockets or () for twin in (each, *(each.dup() for _ in range(DOORS - 1)))]
        await super().startup(doors or None)
        if self.started:
            self._ready(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first asks, the second insists."""
        self._home.draining = True
        if self.should_exit:
            sig = signal.SIGINT  # uvicorn leaves at once on a second one of these only
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        """Take no more connections, end the turns, then let uvicorn see the connections off."""
        self._home.draining = True
        for server in self.servers:
            server.close()
        models = self._home.catalogue.models
        await _close([model for model in models if model.engine.unready_reason()])  # whoever waits for it is told so
        drained = asyncio.create_task(self._home.turns.drain(self._home.settings.shutdown_timeout))
        while not drained.done() and not self.force_exit:
            await asyncio.wait({drained}, timeout=0.1)
        drained.cancel()
        await super().shutdown(sockets)
        await _close(models)


class BindError(OSError):
    """The address cannot be listened on; the message is one line for a person."""


def bind(settings: Settings) -> socket.socket:
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


async def run(
    home: House, listener: socket.socket, *, ready: Callable[[int], None], told: Callable[[Line], None]
) -> None:
    """Serve until a signal comes. The engines start meanwhile; `ready` hears the port when they have.

    Raises `EngineError` where one cannot start. At the end they are closed.
    """
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = Server(home, build(home, told), listening.set_result)

    async def load() -> None:
        try:
            await asyncio.gather(*(model.engine.start() for model in home.catalogue.models))
            ready(await listening)
        except EngineError:
            if server.should_exit:  # it was told to go meanwhile, and that is why
                return
            server.should_exit = True
            raise

    loading = asyncio.create_task(load(), name="loading")
    try:
        await server.serve([listener])
        if loading.done():
            loading.result()
    finally:
        loading.cancel()
        await asyncio.wait({loading})
        await _close(home.catalogue.models)


async def _close(models: Iterable[ServedModel]) -> None:
    for model in models:
        await model.engine.close()


def _api_error(_: Request[Any, Any, Any], error: ApiError) -> Response[Any]:
    reply = json_reply(error.body, error.status)
    reply.headers.update(dict(error.headers))
    return reply


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """What litestar itself answers: paths and methods that nothing is at."""
    where = f"{request.method} {clip(request.url.path)}"
    if error.status_code == 404:
        found = ApiError(404, "unknown_url", f"Unknown request URL: {where}.")
    elif error.status_code == 405:
        allowed = (("allow", ", ".join(_methods(request))),)
        found = ApiError(405, "method_not_allowed", f"Not allowed: {where}.", headers=allowed)
    elif "client disconnected" in error.detail:
        found = ApiError(499, "client_closed_request", "The client left before its body had come.")
    else:
        found = ApiError(error.status_code, None, error.detail)
    return _api_error(request, found)


def _store_error(request: Request[Any, Any, Any], error: sqlite3.OperationalError) -> Response[Any]:
    """The file is full, locked, or gone: that passes, and may be tried again."""
    _log.error("the store cannot be used", request_id=request.scope["state"].get("request_id"), fault=str(error))
    retry = (("retry-after", "1"),)
    return _api_error(request, ApiError(503, "storage_unavailable", "The store cannot be used now.", headers=retry))


def _our_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """A fault of ours. Its words stay in the log."""
    _log.error("request broke", request_id=request.scope["state"].get("request_id"), exc_info=error)
    message = "The server had an error while processing your request."
    return _api_error(request, ApiError(500, "server_error", message))


def _methods(request: Request[Any, Any, Any]) -> list[str]:
    """The methods that are allowed where this request went."""
    asked = request.url.path.strip("/").split("/")
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, HTTPRoute) and len(route.path_components) == len(asked):
            pairs = zip(route.path_components, asked, strict=True)
            if all(not isinstance(part, str) or part == said for part, said in pairs):
                found |= set(route.methods)
    return sorted(found)
