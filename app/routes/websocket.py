"""`/v1/responses` over WebSocket: one connection runs turns one after another, with the events of an SSE stream.

A client sends `response.create` with the body of a POST and receives each event as a text frame, without a final
`[DONE]`. The connection remembers its latest response, so that the next turn can continue it by `previous_response_id`
and send only new items, even if nothing is stored.
An error before a response is created becomes an `error` event with the HTTP status that a POST would have received. The
connection then stays open, unless the client violates the protocol.
"""

import asyncio
import contextlib
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from antiphon.app.base.errors import ApiError, clip_text, internal_error, invalid_type, missing_field, unsupported_field
from antiphon.app.base.reply_form import ReplyForm
from antiphon.app.context import ServerContext
from antiphon.app.http.asgi import AsgiMessage, AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.body_parsing import parse_body
from antiphon.app.http.request_state import request_state
from antiphon.app.projections.responses import encode_entry
from antiphon.app.replies.engine_ready import wait_for_engine
from antiphon.app.replies.http_replies import count_readers
from antiphon.app.replies.stored_reads import read_with_history
from antiphon.app.requests.responses.history import History
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.requests.turn_spec import ParsedRequest, as_prefill
from antiphon.app.store.log_items import output_as_input
from antiphon.app.turns.stored_history import StoredHistory, after_compaction
from antiphon.events.inputs import AnyInput, CompactionInput, InputReasoning

CONNECTION_LIFETIME_S = 3600.0
"""Seconds after which a connection accepts no further turn. Clients expect this limit and reconnect."""
MAX_INTERRUPTIONS = 16
"""Requests during a running response after which the connection is closed: the client ignores the errors."""
_log = structlog.get_logger(__name__)
UNSUPPORTED_DATA, POLICY, NORMAL = 1003, 1008, 1000


class ClientGoneError(Exception):
    """The client has disconnected."""


class WebSocketEndpoint:
    """ASGI application for WebSocket connections that have passed the request guard."""

    def __init__(self, context: ServerContext, lifetime: float = CONNECTION_LIFETIME_S) -> None:
        self._context, self._lifetime = context, lifetime

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Runs one connection, from the handshake to its end."""
        await send({"type": "websocket.accept"})
        session = _WebSocketSession(self._context, request_state(scope).owner, send)
        expiry = asyncio.get_running_loop().call_later(self._lifetime, session.expire)
        try:
            while not session.closed and (message := await receive())["type"] != "websocket.disconnect":
                await session.receive_message(message)
        except ClientGoneError:
            pass
        finally:
            expiry.cancel()
            await session.cancel_turn()


class _WebSocketSession:
    """State of one connection: its latest response, and the turn that is running."""

    def __init__(self, context: ServerContext, owner: str, send: AsgiSend) -> None:
        self._context, self._send = context, send
        self._last = _LastResponse()
        self._owner = owner
        self._running: asyncio.Task[None] | None = None
        self._interruptions = 0
        self._expired = False
        self.closed = False

    async def receive_message(self, message: AsgiMessage) -> None:
        """Handles a frame from the client."""
        if message["type"] != "websocket.receive":
            return
        if message.get("text") is None:
            await self._send_error(
                ApiError(400, "invalid_frame", "Binary frames are not supported. Send one JSON object per text frame.")
            )
            await self._close_connection(UNSUPPORTED_DATA, "binary frames are not supported")
        elif self._running is None or self._running.done():
            self._running = asyncio.create_task(self._handle_request(message["text"]), name="websocket-turn")
        else:
            await self._refuse_overlap()

    def expire(self) -> None:
        """Closes the connection because its lifetime is over. A running turn ends first."""
        self._expired = True
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._close_expired(), name="websocket-close")

    async def cancel_turn(self) -> None:
        """Cancels the running turn: the connection has ended."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running

    async def _handle_request(self, text: str) -> None:
        try:
            data = text.encode()
            await self._run_turn(_parse_frame(await parse_body(data)), len(data))
        except ApiError as error:
            await self._send_error(error)
        except ClientGoneError:
            return
        except Exception:  # noqa: BLE001  # this task has no caller that would report it
            _log.exception("unhandled exception in websocket turn")
            await self._send_error(internal_error())
        if self._expired:
            await self._close_expired()

    async def _run_turn(self, body: dict[str, Any], body_bytes: int) -> None:
        """Runs one turn and sends its events."""
        context = self._context
        is_prefill = body.pop("generate", True) is False
        await wait_for_engine(context, body)

        def read(stored: StoredHistory) -> ParsedRequest[ReplyForm]:
            history = _ExtendedHistory(stored, self._last)
            return read_responses_request(body, context.models, history, context.settings)

        parsed = await read_with_history(context, self._owner, body, body_bytes, read)
        spec = as_prefill(parsed.spec) if is_prefill else parsed.spec
        base = spec.base_response
        if base.store and self._last.is_continued_by(base.previous_response_id) and not self._last.stored:
            message = "The previous response is not stored, so its continuation cannot be stored. Set 'store' to false."
            raise ApiError(400, "invalid_value", message, "store")
        log = await context.turn_manager.start_turn(parsed.model, spec, self._owner)
        with count_readers(context, [log]):
            async for entries in log.follow_entries():
                for entry in entries:
                    await self._send_text(encode_entry(entry, parsed.form.obfuscate).decode())
        response, earlier = log.response, (*parsed.earlier_items, *spec.input_items)
        if response.status in ("completed", "incomplete"):  # one that failed or was cancelled is not continued
            items = (*earlier, *output_as_input(response.output))
            self._last = _LastResponse(response.id, log.base_response.store, items)

    async def _refuse_overlap(self) -> None:
        """Rejects a request that arrives during a response. After `MAX_INTERRUPTIONS`, closes the connection."""
        self._interruptions += 1
        message = "A response is in progress on this connection. Wait for its last event, or open another connection."
        await self._send_error(ApiError(409, "response_in_progress", message))
        if self._interruptions >= MAX_INTERRUPTIONS:
            await self._close_connection(POLICY, "too many requests at once")

    async def _close_expired(self) -> None:
        message = "This connection has reached its time limit. Open a new connection to continue."
        await self._send_error(ApiError(400, "websocket_connection_limit_reached", message))
        await self._close_connection(NORMAL, "connection limit reached")

    async def _send_error(self, error: ApiError) -> None:
        await self._send_text(_error_event(error))

    async def _send_text(self, text: str) -> None:
        try:
            await self._send({"type": "websocket.send", "text": text})
        except OSError as error:
            raise ClientGoneError from error

    async def _close_connection(self, code: int, reason: str) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


class _LastResponse(Struct, frozen=True):
    """The latest response of a connection, stored or not, and all items of the conversation up to its end."""

    response_id: str = ""
    stored: bool = False
    items: tuple[AnyInput, ...] = ()

    def is_continued_by(self, previous_id: str | None) -> bool:
        """Tells whether a request with this previous id continues this response."""
        return self.response_id != "" and previous_id == self.response_id


class _ExtendedHistory:
    """`History` of one request: the latest response of its connection in addition to the stored history."""

    def __init__(self, stored_history: History, last: _LastResponse) -> None:
        self._stored_history, self._last = stored_history, last
        self._items: dict[str, AnyInput] | None = None

    def find_item(self, item_id: str) -> Struct | None:
        if self._items is None:
            self._items = {item.id: item for item in reversed(self._last.items) if item.id}
        return self._items.get(item_id) or self._stored_history.find_item(item_id)

    def items_before_input(self, previous_id: str | None, conversation_id: str | None) -> tuple[AnyInput, ...]:
        if self._last.is_continued_by(previous_id):
            return after_compaction(self._last.items)
        return self._stored_history.items_before_input(previous_id, conversation_id)

    def decrypt(self, item: InputReasoning | CompactionInput) -> str | None:
        return self._stored_history.decrypt(item)


def _parse_frame(frame: dict[str, Any]) -> dict[str, Any]:
    """Returns the request body in a `response.create` frame. Raises `ApiError`."""
    if frame.get("type") is None:
        raise missing_field("type")
    if frame["type"] != "response.create":
        message = f"Invalid value: '{clip_text(str(frame['type']))}'. Supported values are: 'response.create'."
        raise ApiError(400, "invalid_value", message, "type")
    if not isinstance(frame.get("generate", True), bool):
        raise invalid_type("generate", "a boolean", frame["generate"])
    if frame.get("background"):
        raise unsupported_field(
            "background", "Background responses are not supported over WebSocket. Use POST /v1/responses."
        )
    if frame.get("stream", True) is not True:
        raise unsupported_field("stream", "Responses over WebSocket are always streamed.")
    return {**{key: value for key, value in frame.items() if key != "type"}, "stream": True}


def _error_event(error: ApiError) -> str:
    fields = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
    event: dict[str, Any] = {"type": "error", "status": int(error.status), "error": fields}
    if error.headers:
        event["headers"] = dict(error.headers)
    return msgspec.json.encode(event).decode()
