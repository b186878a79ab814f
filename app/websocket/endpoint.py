"""`/v1/responses` over WebSocket: the connection, which runs the turns of its lanes and sends their events.

A client sends `response.create` with the body of a POST and receives each event as a text frame, without a final
`[DONE]`. With `stream_id`, the request belongs to that lane, and so do its events and errors. Each lane remembers its
latest response, so that a turn can continue it by `previous_response_id` and send only new items, even if nothing is
stored. An error before a response is created becomes an `error` event with the HTTP status that a POST would have
received. The connection then stays open, unless the client violates the protocol.
"""

import asyncio
import contextlib
from typing import Any

import structlog

from antiphon.app.base.errors import ApiError, internal_error
from antiphon.app.base.reply_form import ReplyForm
from antiphon.app.context import ServerContext
from antiphon.app.http.asgi import AsgiMessage, AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.body_parsing import parse_body
from antiphon.app.http.request_state import request_state
from antiphon.app.projections.responses import encode_entry
from antiphon.app.replies.engine_ready import wait_for_engine
from antiphon.app.replies.http_replies import count_readers
from antiphon.app.replies.stored_reads import read_with_history
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.requests.turn_spec import ParsedRequest, as_prefill
from antiphon.app.store.log_items import output_as_input
from antiphon.app.turns.stored_history import StoredHistory
from antiphon.app.websocket.frames import read_create_frame, read_stream_id, write_error, write_event
from antiphon.app.websocket.history import LaneHistory, LaneResponse
from antiphon.app.websocket.lanes import LaneScheduler, WaitingTurn

CONNECTION_LIFETIME_S = 3600.0
"""Seconds after which a connection accepts no further turn. Clients expect this limit and reconnect."""
_log = structlog.get_logger(__name__)
UNSUPPORTED_DATA, NORMAL = 1003, 1000


class ClientGoneError(Exception):
    """The client has disconnected."""


class WebSocketEndpoint:
    """ASGI application for WebSocket connections that have passed the request guard."""

    def __init__(self, context: ServerContext, lifetime: float = CONNECTION_LIFETIME_S) -> None:
        self._context, self._lifetime = context, lifetime

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Runs one connection, from the handshake to its end."""
        await send({"type": "websocket.accept"})
        connection = _Connection(self._context, request_state(scope).owner, send)
        expiry = asyncio.get_running_loop().call_later(self._lifetime, connection.expire)
        try:
            while not connection.closed and (message := await receive())["type"] != "websocket.disconnect":
                await connection.receive_message(message)
        except ClientGoneError:
            pass
        finally:
            expiry.cancel()
            await connection.cancel_turns()


class _Connection:
    """One connection, whose frames are read in order."""

    def __init__(self, context: ServerContext, owner: str, send: AsgiSend) -> None:
        self._context, self._send, self._owner = context, send, owner
        self._lanes = LaneScheduler(self._run_turn, self._on_idle)
        self._expired = False
        self._closing: asyncio.Task[None] | None = None
        self.closed = False

    async def receive_message(self, message: AsgiMessage) -> None:
        """Handles a frame from the client."""
        if message["type"] != "websocket.receive":
            return
        if message.get("text") is None:
            text = "Binary frames are not supported. Send one JSON object per text frame."
            await self._send_error(ApiError(400, "invalid_frame", text))
            await self._close_connection(UNSUPPORTED_DATA, "binary frames are not supported")
            return
        try:
            data = message["text"].encode()
            frame = await parse_body(data)
            stream_id = read_stream_id(frame)
        except ApiError as error:
            await self._send_error(error)
            return
        try:
            await self._accept_frame(frame, stream_id, len(data))
        except ApiError as error:
            await self._send_error(error, stream_id)

    async def _accept_frame(self, frame: dict[str, Any], stream_id: str | None, num_bytes: int) -> None:
        if self._expired:
            raise _expired_error()
        create = read_create_frame(frame, stream_id, num_bytes)
        self._lanes.add(self._lanes.find_lane(stream_id), create)

    def expire(self) -> None:
        """Ends the lifetime of the connection. Its requests end first, then it is closed."""
        self._expired = True
        self._on_idle()

    def _on_idle(self) -> None:
        if self._expired and self._lanes.is_idle and self._closing is None:
            self._closing = asyncio.create_task(self._close_expired(), name="websocket-close")

    async def cancel_turns(self) -> None:
        """Cancels all requests: the connection has ended."""
        await self._lanes.cancel_all()
        if self._closing is not None:
            with contextlib.suppress(ClientGoneError):
                await self._closing

    async def _run_turn(self, turn: WaitingTurn) -> None:
        """Runs the turn of a request. Its errors are sent to its lane."""
        try:
            await self._generate(turn)
        except ApiError as error:
            await self._report_error(error, turn)
        except ClientGoneError:
            return
        except Exception:  # noqa: BLE001  # this task has no caller that would report it
            _log.exception("unhandled exception in websocket turn")
            await self._report_error(internal_error(), turn)

    async def _generate(self, turn: WaitingTurn) -> None:
        """Generates a response, and sends its events."""
        context, lane, body = self._context, turn.lane, turn.frame.body
        previous = turn.previous or self._lanes.find_response(body.get("previous_response_id"))
        await wait_for_engine(context, body)

        def read(stored: StoredHistory) -> ParsedRequest[ReplyForm]:
            history = LaneHistory(stored, previous or lane.latest)
            return read_responses_request(body, context.models, history, context.settings)

        parsed = await read_with_history(context, self._owner, body, turn.frame.num_bytes, read)
        spec = as_prefill(parsed.spec) if turn.frame.is_prefill else parsed.spec
        if spec.base_response.store and previous is not None and not previous.stored:
            message = "The previous response is not stored, so its continuation cannot be stored. Set 'store' to false."
            raise ApiError(400, "invalid_value", message, "store")
        log = await context.turn_manager.start_turn(parsed.model, spec, self._owner)
        with count_readers(context, [log]):
            async for entries in log.follow_entries():
                for entry in entries:
                    await self._send_text(write_event(encode_entry(entry, parsed.form.obfuscate), lane.suffix))
        response = log.response
        if response.status in ("completed", "incomplete"):  # one that failed or was cancelled is not continued
            items = (*parsed.earlier_items, *spec.input_items, *output_as_input(response.output))
            lane.latest = LaneResponse(response.id, log.base_response.store, items)

    async def _close_expired(self) -> None:
        await self._send_error(_expired_error())
        await self._close_connection(NORMAL, "connection limit reached")

    async def _report_error(self, error: ApiError, turn: WaitingTurn) -> None:
        with contextlib.suppress(ClientGoneError):
            await self._send_error(error, turn.lane.stream_id)

    async def _send_error(self, error: ApiError, stream_id: str | None = None) -> None:
        await self._send_text(write_error(error, stream_id))

    async def _send_text(self, text: str) -> None:
        try:
            await self._send({"type": "websocket.send", "text": text})
        except OSError as error:
            raise ClientGoneError from error

    async def _close_connection(self, code: int, reason: str) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


def _expired_error() -> ApiError:
    message = "This connection has reached its time limit. Open a new connection to continue."
    return ApiError(400, "websocket_connection_limit_reached", message)
