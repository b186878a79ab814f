"""`/v1/responses` over WebSocket: the connection, which runs the turns of its lanes and sends their events.

A client sends `response.create` with the body of a POST and receives each event as a text frame, without a final
`[DONE]`. With `stream_id`, the request belongs to that lane, and so do its events and errors. Each lane remembers its
latest response, so that a turn can continue it by `previous_response_id` and send only new items, even if nothing is
stored. An error before a response is created becomes an `error` event with the HTTP status that a POST would have
received. The connection then stays open, unless the client violates the protocol.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from antiphon.app.context import ServerContext
from antiphon.app.errors import ApiError, internal_error
from antiphon.app.http.asgi import AsgiMessage, AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.body_parsing import parse_body
from antiphon.app.http.endpoints.endpoint import Endpoint
from antiphon.app.http.request_body import BodyReservation
from antiphon.app.http.request_state import RequestState, request_state
from antiphon.app.keys.key_checks import refresh_key
from antiphon.app.projections.responses import encode_entry
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.requests.turn_spec import ParsedRequest, as_prefill
from antiphon.app.route_helpers.engine_ready import wait_for_engine
from antiphon.app.route_helpers.http_replies import count_readers
from antiphon.app.route_helpers.stored_reads import read_with_history
from antiphon.app.store.log_items import output_as_input
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.event_log import EventLog, LogDivergedError
from antiphon.app.turn_types.reply_form import ResponsesForm
from antiphon.app.turn_types.tracing.context import RequestTrace
from antiphon.app.turn_types.turn_stats import TurnOrigin
from antiphon.app.turns.stored_history import StoredHistory
from antiphon.app.websocket.frames import STEER, read_create_frame, read_stream_id, write_error, write_event
from antiphon.app.websocket.held_memory import ConnectionHold, HeldMemory
from antiphon.app.websocket.history import LaneHistory, LaneResponse
from antiphon.app.websocket.lanes import MAX_HELD, Lane, LaneScheduler, WaitingTurn
from antiphon.app.websocket.steering import (
    EndedResponse,
    SteeredResponse,
    SteerError,
    find_steer_error,
    list_required_input,
    move_steers_behind_outputs,
    read_steer,
    write_accepted,
    write_failed,
    write_pending,
)
from antiphon.events.response import Response

SOCKET_ENDPOINT = Endpoint("WEBSOCKET", "/v1/responses", starts="responses")
"""Each frame that creates a response starts a turn, and counts as a request."""
CONNECTION_LIFETIME_S = 3600.0
"""Seconds after which a connection accepts no further turn. Clients expect this limit and reconnect."""
MAX_ENDED = 256
"""Number of responses of a connection whose end is remembered, to answer a steer that comes late."""
_log = structlog.get_logger(__name__)
UNSUPPORTED_DATA, NORMAL, SERVICE_RESTART = 1003, 1000, 1012


class ClientGoneError(Exception):
    """The client has disconnected."""


class WebSocketEndpoint:
    """ASGI application for WebSocket connections that have passed the request guard."""

    def __init__(
        self,
        context: ServerContext,
        lifetime: float = CONNECTION_LIFETIME_S,
        on_turn_done: Callable[[AccessRecord], None] = lambda _: None,
    ) -> None:
        self._context, self._lifetime, self._on_turn_done = context, lifetime, on_turn_done
        self._memory = HeldMemory()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Runs one connection, from the handshake to its end."""
        await send({"type": "websocket.accept"})
        connection = _Connection(self._context, request_state(scope), send, self._on_turn_done, self._memory)
        expiry = asyncio.get_running_loop().call_later(self._lifetime, connection.expire)
        try:
            with contextlib.suppress(ClientGoneError), self._context.metrics.requests.count_stream("websocket"):
                while not connection.closed and (message := await receive())["type"] != "websocket.disconnect":
                    if message["type"] == "websocket.receive":
                        await connection.receive_message(message)
        finally:
            expiry.cancel()
            await connection.cancel_turns()


class _Connection:
    """One connection, whose frames are read in order."""

    def __init__(
        self,
        context: ServerContext,
        state: RequestState,
        send: AsgiSend,
        on_turn_done: Callable[[AccessRecord], None],
        memory: HeldMemory,
    ) -> None:
        self._context, self._send, self._on_turn_done = context, send, on_turn_done
        self._key, self._owner, self._request_id, self._trace = state.key, state.owner, state.request_id, state.trace
        reservation, hold = BodyReservation(context.body_memory), ConnectionHold(memory, self._owner)
        self._lanes = LaneScheduler(self._run_turn, self._on_idle, reservation, hold, self._on_steers_dropped)
        self._returns = set[asyncio.Task[None]]()  # tasks that give dropped steers back
        self._running: dict[str, SteeredResponse] = {}
        """Responses that are being generated, by id."""
        self._ended: dict[str, EndedResponse] = {}
        """The last responses that have ended, by id."""
        self._expired = False
        self._closing: asyncio.Task[None] | None = None
        self.closed = False

    async def receive_message(self, message: AsgiMessage) -> None:
        """Handles a frame from the client."""
        if message.get("text") is None:
            text = "Binary frames are not supported. Send one JSON object per text frame."
            await self._send_error(ApiError(400, "invalid_frame", text))
            await self._close_connection(UNSUPPORTED_DATA, "binary frames are not supported")
            return
        try:
            data = message["text"].encode()
            frame = await parse_body(data)
            if frame.get("type") == STEER:
                await self._steer(frame, len(data))
                return
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
        except LogDivergedError:  # the response continues elsewhere with other events than those that were sent
            await self._close_connection(SERVICE_RESTART, "another server has taken the response over")
        except Exception:  # noqa: BLE001  # this task has no caller that would report it
            _log.exception("unhandled exception in websocket turn")
            await self._report_error(internal_error(), turn)

    async def _generate(self, turn: WaitingTurn) -> None:
        """Generates a response, and sends its events."""
        context, lane, frame = self._context, turn.lane, turn.frame
        self._key = refresh_key(context.keys, self._key)
        context.meter.count_request(self._key)
        models = context.models.restrict(self._key.models)
        previous = turn.previous or self._lanes.find_response(frame.body.get("previous_response_id"))
        steers = turn.steers or lane.held_steers.get(frame.body.get("previous_response_id"))
        body = _add_steers(frame.body, steers)
        await wait_for_engine(context, models, body)

        def read(stored: StoredHistory) -> ParsedRequest[ResponsesForm]:
            history = LaneHistory(stored, previous or lane.latest)
            return read_responses_request(body, models, history, context.settings)

        parsed = await read_with_history(context, self._owner, body, frame.num_bytes, read)
        spec = move_steers_behind_outputs(parsed.spec, len(steers.messages) if steers else 0)
        spec = as_prefill(spec) if frame.is_prefill else spec
        if spec.base_response.store and previous is not None and not previous.stored:
            message = "The previous response is not stored, so its continuation cannot be stored. Set 'store' to false."
            raise ApiError(400, "invalid_value", message, "store")
        sent = b"" if context.turn_manager.recorder is None else msgspec.json.encode(frame.body)
        trace = None if self._trace is None else context.begin_frame_trace(self._trace)
        origin = TurnOrigin(arrived=frame.arrived, request_id=self._request_id, body=sent, key=self._key, trace=trace)
        log = await context.turn_manager.start_turn(parsed.model, spec, self._owner, origin)
        turn.steers = None  # they are part of this response now
        if steers is not None:
            lane.held_steers.pop(steers.response_id, None)
        response = self._running[log.id] = SteeredResponse(frame, spec, log.id)
        try:
            with count_readers(context, [log]):
                async for entries in log.follow_entries():
                    for entry in entries:
                        response.sequence_number = entry.event.sequence_number
                        await self._send_text(write_event(encode_entry(entry, parsed.form), lane.suffix))
        finally:
            del self._running[log.id]
            self._record_turn(log, frame.arrived, trace)
        ended = log.response
        self._remember_end(response, ended.status)
        if ended.status in ("completed", "incomplete"):  # one that failed or was cancelled is not continued
            items = (*parsed.earlier_items, *spec.input_items, *output_as_input(ended.output))
            lane.latest = LaneResponse(ended.id, log.base_response.store, items)
            await lane.latest.count_items(previous, len(parsed.earlier_items), frame.num_bytes)
        if response.steers:
            await self._settle_steers(lane, response, ended)

    def _record_turn(self, log: EventLog, started: float, trace: RequestTrace | None) -> None:
        """Adds a line to the access log: a connection may have any number of turns."""
        if log.stats is not None:
            path, now = SOCKET_ENDPOINT.path, time.monotonic()
            request = SOCKET_ENDPOINT.method, path, 200, now - started, self._request_id
            self._on_turn_done(AccessRecord(*request, turns=(log.stats,), trace=trace, route=path, ended=now))

    def _remember_end(self, response: SteeredResponse, status: str) -> None:
        response_id, number = response.response_id, response.sequence_number
        self._ended[response_id] = EndedResponse(response_id, response.stream_id, number, status)
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    async def _steer(self, frame: dict[str, Any], num_bytes: int) -> None:
        """Accepts input for a response that is being generated, or gives it back."""
        sent, response_id = frame.get("input"), frame.get("previous_response_id")
        response, ended = self._running.get(str(response_id)), self._ended.get(str(response_id))
        try:
            messages = read_steer(frame)
            if response is None:
                raise find_steer_error(ended)
            steer = response.accept(sent, messages, num_bytes)
        except SteerError as error:
            await self._send_text(write_failed(error, sent, response_id, response or ended))
            return
        await self._send_text(write_accepted(steer, response))
        self._context.turn_manager.steer_turn(response.response_id)

    async def _settle_steers(self, lane: Lane, response: SteeredResponse, ended: Response) -> None:
        """Decides what becomes of the steers of a response that has ended."""
        if ended.status not in ("completed", "incomplete"):
            await self._fail_steers(response, SteerError("response_not_active", "The response did not complete."))
        elif not (required := list_required_input(ended)):
            self._lanes.add_successor(lane, response)
        else:
            lane.held_steers[response.response_id] = response
            if len(lane.held_steers) > MAX_HELD:
                oldest = lane.held_steers.pop(next(iter(lane.held_steers)))
                await self._fail_steers(oldest, SteerError("too_many_pending_steers", "Too many steers wait."))
            response.forget_request()
            if not self._lanes.is_awaited(lane, response.response_id):
                for steer in response.steers:
                    await self._send_text(write_pending(steer, response, required))

    def _on_steers_dropped(self, response: SteeredResponse) -> None:
        self._returns.add(task := asyncio.create_task(self._return_steers(response), name="websocket-steers"))
        task.add_done_callback(self._returns.discard)

    async def _return_steers(self, response: SteeredResponse) -> None:
        with contextlib.suppress(ClientGoneError):
            message = "The WebSocket connections of this server keep too much, so the steer was dropped."
            await self._fail_steers(response, SteerError("too_many_pending_steers", message))

    async def _fail_steers(self, response: SteeredResponse, error: SteerError) -> None:
        for steer in response.steers:
            await self._send_text(write_failed(error, steer.sent, response.response_id, response, steer))

    async def _close_expired(self) -> None:
        await self._send_error(_expired_error())
        await self._close_connection(NORMAL, "connection limit reached")

    async def _report_error(self, error: ApiError, turn: WaitingTurn) -> None:
        with contextlib.suppress(ClientGoneError):
            if turn.steers is not None:  # the client has sent no request that could fail
                await self._fail_steers(turn.steers, SteerError("successor_creation_failed", error.message))
            else:
                await self._send_error(error, turn.lane.stream_id)

    async def _send_error(self, error: ApiError, stream_id: str | None = None) -> None:
        self._context.metrics.requests.count_rejection(error.code or f"status_{error.status}")
        self._context.meter.count_reply(self._key, error.status)
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


def _add_steers(body: dict[str, Any], steers: SteeredResponse | None) -> dict[str, Any]:
    if steers is None:
        return body
    sent = body.get("input")
    own_items = [{"type": "message", "role": "user", "content": sent}] if isinstance(sent, str) else sent
    return {**body, "input": [*steers.messages, *own_items] if isinstance(own_items, list) else sent}


def _expired_error() -> ApiError:
    message = "This connection has reached its time limit. Open a new connection to continue."
    return ApiError(400, "websocket_connection_limit_reached", message)
