"""`/v1/responses` as a WebSocket: turn after turn on one connection, told in the same events as a stream.

A client sends `response.create` with the body of a POST, and gets each event as a text frame, no `[DONE]` behind. One
response runs at a time. What was said last is remembered for as long as the connection lives, so a turn may go on from
it by `previous_response_id` and send only what is new, though nothing is stored. What goes wrong before a response was
created is an `error` event with the status that HTTP would have had; the connection stays, but for broken rules.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from antiphon.app.context import House
from antiphon.app.errors import ApiError, clip, invalid_type, missing, unsupported
from antiphon.app.event_log import Log
from antiphon.app.http.asgi import Message, Receive, Scope, Send
from antiphon.app.projections.responses import said_of
from antiphon.app.requests.history import Behind
from antiphon.app.requests.json_body import document
from antiphon.app.requests.responses import read
from antiphon.app.requests.turn_spec import warming
from antiphon.app.routes.engine_ready import woken
from antiphon.app.routes.replies import attended
from antiphon.app.store.log_items import said
from antiphon.app.turns.stored_history import Past, shortened
from antiphon.events.inputs import AnyInput, CompactionInput, InputReasoning

LIFETIME = 3600.0
"""Seconds after which a connection takes no further turn: clients know this limit and connect anew."""
MOST_INTERRUPTIONS = 16
"""A client that asks again, this often, while it is being answered is not listening."""
_log = structlog.get_logger("antiphon.socket")
UNSUPPORTED_DATA, POLICY, NORMAL = 1003, 1008, 1000


class GoneError(Exception):
    """The client has left."""


class Socket:
    """ASGI: one connection, which the gate has let through."""

    def __init__(self, home: House, lifetime: float = LIFETIME) -> None:
        self._home, self._lifetime = home, lifetime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """From the handshake to the end."""
        await send({"type": "websocket.accept"})
        session = _Session(self._home, scope["state"]["owner"], send)
        expiry = asyncio.get_running_loop().call_later(self._lifetime, session.expire)
        try:
            while not session.over and (message := await receive())["type"] != "websocket.disconnect":
                await session.take(message)
        except GoneError:
            pass
        finally:
            expiry.cancel()
            await session.leave()


class _Session:
    """What one connection has said and is saying."""

    def __init__(self, home: House, owner: str, send: Send) -> None:
        self._home, self._send = home, send
        self._near = _Near(Past(home.store, owner, home.turns.seals))
        self._owner = owner
        self._running: asyncio.Task[None] | None = None
        self._interruptions = 0
        self._expired = False
        self.over = False

    async def take(self, message: Message) -> None:
        """A frame from the client."""
        if message["type"] != "websocket.receive":
            return
        if message.get("text") is None:
            await self._refuse(ApiError(400, "invalid_frame", "Frames are text: one JSON object each."))
            await self._close(UNSUPPORTED_DATA, "text frames only")
        elif self._running is None or self._running.done():
            self._running = asyncio.create_task(self._answer(message["text"]), name="socket turn")
        else:
            await self._interrupted()

    def expire(self) -> None:
        """The connection has lived long enough. What runs comes to its end first."""
        self._expired = True
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._end(), name="socket end")

    async def leave(self) -> None:
        """The client is gone, and its turn with it."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running

    async def _answer(self, text: str) -> None:
        try:
            await self._turn(_body(text))
        except ApiError as error:
            await self._refuse(error)
        except GoneError:
            return
        except Exception:  # noqa: BLE001  # nobody else hears of what breaks in this task
            _log.exception("socket turn broke")
            await self._refuse(ApiError(500, "server_error", "The server had an error while processing your request."))
        if self._expired:
            await self._end()

    async def _turn(self, body: dict[str, Any]) -> None:
        """One response, from its body to its last event."""
        home = self._home
        warm = body.pop("generate", True) is False
        await woken(home, body)
        asked = read(body, home.catalogue, self._near, home.settings)
        spec = warming(asked.spec) if warm else asked.spec
        if spec.head.store and self._near.leans_on_what_is_not_stored(body):
            message = "The previous response is not stored, so what follows it cannot be: send 'store' false."
            raise ApiError(400, "invalid_value", message, "store")
        log = await home.turns.open(asked.model, spec, self._owner)
        told = said_of(obfuscated=spec.obfuscate)
        with attended(home, [log]):
            async for frames in log.follow():
                for frame in frames:
                    await self._say(told(frame).decode())
        self._near.remember(log, spec.given)

    async def _interrupted(self) -> None:
        """One response at a time. The one that runs is none the worse for it."""
        self._interruptions += 1
        message = "A response is in progress on this connection; wait for its last event, or open another connection."
        await self._refuse(ApiError(409, "response_in_progress", message))
        if self._interruptions >= MOST_INTERRUPTIONS:
            await self._close(POLICY, "too many requests at once")

    async def _end(self) -> None:
        message = "This connection has reached its limit; open another one and go on there."
        await self._refuse(ApiError(400, "websocket_connection_limit_reached", message))
        await self._close(NORMAL, "connection limit reached")

    async def _refuse(self, error: ApiError) -> None:
        await self._say(_told(error))

    async def _say(self, text: str) -> None:
        try:
            await self._send({"type": "websocket.send", "text": text})
        except OSError as error:
            raise GoneError from error

    async def _close(self, code: int, reason: str) -> None:
        self.over = True
        with contextlib.suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


class _Last(Struct, frozen=True):
    """The latest response of a connection, and all that was said up to its end."""

    id: str = ""
    stored: bool = False
    items: tuple[AnyInput, ...] = ()


class _Near:
    """What is behind a request on a connection: the latest response is remembered here, stored or not."""

    def __init__(self, past: Behind) -> None:
        self._past = past
        self._last = _Last()
        self._before: tuple[AnyInput, ...] = ()

    def item(self, item_id: str) -> Struct | None:
        return next((item for item in self._last.items if item.id == item_id), None) or self._past.item(item_id)

    def earlier(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        known = body.get("previous_response_id") == self._last.id and self._last.id
        self._before = shortened(self._last.items) if known else self._past.earlier(body)
        return self._before

    def leans_on_what_is_not_stored(self, body: Mapping[str, Any]) -> bool:
        """Whether a request goes on from a response that nobody else could find."""
        return body.get("previous_response_id") == self._last.id and not self._last.stored and self._last.id != ""

    def opened(self, item: InputReasoning | CompactionInput) -> str | None:
        return self._past.opened(item)

    def remember(self, log: Log, given: tuple[AnyInput, ...]) -> None:
        """A response has ended. One that failed leaves what was before it as it was."""
        response = log.response
        if response.status in ("completed", "incomplete"):
            self._last = _Last(response.id, log.head.store, (*self._before, *given, *said(response)))


def _body(text: str) -> dict[str, Any]:
    """The body of the response that a frame asks for. Raises `ApiError`."""
    frame = document(text.encode())
    if frame.get("type") is None:
        raise missing("type")
    if frame["type"] != "response.create":
        message = f"Invalid value: '{clip(str(frame['type']))}'. Supported values are: 'response.create'."
        raise ApiError(400, "invalid_value", message, "type")
    if not isinstance(frame.get("generate", True), bool):
        raise invalid_type("generate", "a boolean", frame["generate"])
    if frame.get("background"):
        raise unsupported("background", "A response on a connection ends with it; use an HTTP POST.")
    if frame.get("stream", True) is not True:
        raise unsupported("stream", "On a connection every response is streamed.")
    return {**{key: value for key, value in frame.items() if key != "type"}, "stream": True}


def _told(error: ApiError) -> str:
    fault = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
    event: dict[str, Any] = {"type": "error", "status": int(error.status), "error": fault}
    if error.headers:
        event["headers"] = dict(error.headers)
    return msgspec.json.encode(event).decode()
