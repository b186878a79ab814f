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

from antiphon.app.context import ServerContext
from antiphon.app.errors import ApiError, clip_text, invalid_type, missing_field, unsupported_field
from antiphon.app.event_log import EventLog
from antiphon.app.http.asgi import AsgiMessage, AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.request_state import request_state
from antiphon.app.projections.responses import event_encoder
from antiphon.app.requests.history import History
from antiphon.app.requests.json_body import parse_object
from antiphon.app.requests.responses import read_responses_request
from antiphon.app.requests.turn_spec import as_prefill
from antiphon.app.routes.engine_ready import wait_for_engine
from antiphon.app.routes.replies import count_readers
from antiphon.app.store.log_items import output_as_input
from antiphon.app.turns.stored_history import StoredHistory, after_compaction
from antiphon.events.inputs import AnyInput, CompactionInput, InputReasoning

CONNECTION_LIFETIME_S = 3600.0
"""Seconds after which a connection takes no further turn: clients know this limit and connect anew."""
MAX_INTERRUPTIONS = 16
"""A client that asks again, this often, while it is being answered is not listening."""
_log = structlog.get_logger(__name__)
UNSUPPORTED_DATA, POLICY, NORMAL = 1003, 1008, 1000


class ConnectionGoneError(Exception):
    """The client has left."""


class WebSocketEndpoint:
    """ASGI: one connection, which the gate has let through."""

    def __init__(self, home: ServerContext, lifetime: float = CONNECTION_LIFETIME_S) -> None:
        self._home, self._lifetime = home, lifetime

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """From the handshake to the end."""
        await send({"type": "websocket.accept"})
        session = _WebSocketSession(self._home, request_state(scope).owner, send)
        expiry = asyncio.get_running_loop().call_later(self._lifetime, session.expire)
        try:
            while not session.closed and (message := await receive())["type"] != "websocket.disconnect":
                await session.receive_message(message)
        except ConnectionGoneError:
            pass
        finally:
            expiry.cancel()
            await session.cancel_turn()


class _WebSocketSession:
    """What one connection has said and is saying."""

    def __init__(self, home: ServerContext, owner: str, send: AsgiSend) -> None:
        self._home, self._send = home, send
        self._history = _ConnectionHistory(StoredHistory(home.store, owner, home.turn_manager.sealer))
        self._owner = owner
        self._running: asyncio.Task[None] | None = None
        self._interruptions = 0
        self._expired = False
        self.closed = False

    async def receive_message(self, message: AsgiMessage) -> None:
        """A frame from the client."""
        if message["type"] != "websocket.receive":
            return
        if message.get("text") is None:
            await self._send_error(ApiError(400, "invalid_frame", "Frames are text: one JSON object each."))
            await self._close_connection(UNSUPPORTED_DATA, "text frames only")
        elif self._running is None or self._running.done():
            self._running = asyncio.create_task(self._handle_request(message["text"]), name="websocket-turn")
        else:
            await self._refuse_overlap()

    def expire(self) -> None:
        """The connection has lived long enough. What runs comes to its end first."""
        self._expired = True
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._close_expired(), name="websocket-close")

    async def cancel_turn(self) -> None:
        """The client is gone, and its turn with it."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running

    async def _handle_request(self, text: str) -> None:
        try:
            await self._run_turn(_read_frame(text))
        except ApiError as error:
            await self._send_error(error)
        except ConnectionGoneError:
            return
        except Exception:  # noqa: BLE001  # nobody else hears of what breaks in this task
            _log.exception("unhandled exception in websocket turn")
            await self._send_error(
                ApiError(500, "server_error", "The server had an error while processing your request.")
            )
        if self._expired:
            await self._close_expired()

    async def _run_turn(self, body: dict[str, Any]) -> None:
        """One response, from its body to its last event."""
        home = self._home
        warm = body.pop("generate", True) is False
        await wait_for_engine(home, body)
        asked = read_responses_request(body, home.models, self._history, home.settings)
        spec = as_prefill(asked.spec) if warm else asked.spec
        if spec.base_response.store and self._history.continues_unstored_response(body):
            message = "The previous response is not stored, so what follows it cannot be: send 'store' false."
            raise ApiError(400, "invalid_value", message, "store")
        log = await home.turn_manager.start_turn(asked.model, spec, self._owner)
        told = event_encoder(obfuscated=spec.obfuscate)
        with count_readers(home, [log]):
            async for frames in log.follow_entries():
                for frame in frames:
                    await self._send_text(told(frame).decode())
        self._history.remember_response(log, (*asked.earlier_items, *spec.input_items))

    async def _refuse_overlap(self) -> None:
        """One response at a time. The one that runs is none the worse for it."""
        self._interruptions += 1
        message = "A response is in progress on this connection; wait for its last event, or open another connection."
        await self._send_error(ApiError(409, "response_in_progress", message))
        if self._interruptions >= MAX_INTERRUPTIONS:
            await self._close_connection(POLICY, "too many requests at once")

    async def _close_expired(self) -> None:
        message = "This connection has reached its limit; open another one and go on there."
        await self._send_error(ApiError(400, "websocket_connection_limit_reached", message))
        await self._close_connection(NORMAL, "connection limit reached")

    async def _send_error(self, error: ApiError) -> None:
        await self._send_text(_error_event(error))

    async def _send_text(self, text: str) -> None:
        try:
            await self._send({"type": "websocket.send", "text": text})
        except OSError as error:
            raise ConnectionGoneError from error

    async def _close_connection(self, code: int, reason: str) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


class _LastResponse(Struct, frozen=True):
    """The latest response of a connection, and all that was said up to its end."""

    response_id: str = ""
    stored: bool = False
    items: tuple[AnyInput, ...] = ()


class _ConnectionHistory:
    """What is behind a request on a connection: the latest response is remembered here, stored or not."""

    def __init__(self, past: History) -> None:
        self._past = past
        self._last = _LastResponse()

    def find_item(self, item_id: str) -> Struct | None:
        return next((item for item in self._last.items if item.id == item_id), None) or self._past.find_item(item_id)

    def items_before_input(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        known = body.get("previous_response_id") == self._last.response_id and self._last.response_id
        return after_compaction(self._last.items) if known else self._past.items_before_input(body)

    def continues_unstored_response(self, body: Mapping[str, Any]) -> bool:
        """Whether a request goes on from a response that nobody else could find."""
        return (
            body.get("previous_response_id") == self._last.response_id
            and not self._last.stored
            and self._last.response_id != ""
        )

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        return self._past.decrypt(item)

    def remember_response(self, log: EventLog, items: tuple[AnyInput, ...]) -> None:
        """A response has ended. One that failed leaves what was before it as it was."""
        response = log.response
        if response.status in ("completed", "incomplete"):
            self._last = _LastResponse(response.id, log.base_response.store, (*items, *output_as_input(response)))


def _read_frame(text: str) -> dict[str, Any]:
    """The body of the response that a frame asks for. Raises `ApiError`."""
    frame = parse_object(text.encode())
    if frame.get("type") is None:
        raise missing_field("type")
    if frame["type"] != "response.create":
        message = f"Invalid value: '{clip_text(str(frame['type']))}'. Supported values are: 'response.create'."
        raise ApiError(400, "invalid_value", message, "type")
    if not isinstance(frame.get("generate", True), bool):
        raise invalid_type("generate", "a boolean", frame["generate"])
    if frame.get("background"):
        raise unsupported_field("background", "A response on a connection ends with it; use an HTTP POST.")
    if frame.get("stream", True) is not True:
        raise unsupported_field("stream", "On a connection every response is streamed.")
    return {**{key: value for key, value in frame.items() if key != "type"}, "stream": True}


def _error_event(error: ApiError) -> str:
    fault = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
    event: dict[str, Any] = {"type": "error", "status": int(error.status), "error": fault}
    if error.headers:
        event["headers"] = dict(error.headers)
    return msgspec.json.encode(event).decode()
