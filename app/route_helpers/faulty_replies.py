"""An ASGI application around the server's that breaks replies as their script asks for."""

import asyncio
import math
from functools import partial

import msgspec
import structlog

from antiphon.app.http.asgi import AsgiApp, AsgiMessage, AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.request_state import request_state
from antiphon.app.route_helpers.event_stream import END_MESSAGE, ClientDisconnected, run_until_disconnect
from antiphon.app.scripted.faults import CURRENT_REQUEST, FaultyRequest
from antiphon.kit.faults import (
    CloseConnection,
    FaultInjector,
    PauseWriting,
    ResetConnection,
    WireFault,
    WriteBytes,
    break_json_reply,
    split_frames,
)

FAULT_RESET_DELAY_S = 0.05
"""Time before a reset in which what was written reaches the client."""

_log = structlog.get_logger(__name__)


class _BodyFields(msgspec.Struct):
    """Fields of a request that decide what its reply is."""

    stream: bool | None = None
    background: bool | None = None


class FaultyReplies:
    """Wraps `app`, whose engines note the faults of the replies."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Handles one request. All that it starts runs in its context."""
        reply = _FaultyReply(scope, receive, send)
        token = CURRENT_REQUEST.set(reply.request)
        try:
            await self._app(scope, reply.receive, reply.send)
        finally:
            CURRENT_REQUEST.reset(token)
        if reply.is_lost:
            raise ClientDisconnected


class _FaultyReply:
    """One request, and its reply: a stream whose frames pass through a `FaultInjector`, or a reply in one piece."""

    def __init__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        self._state, self._receive, self._send = request_state(scope), receive, send
        api = self._state.match.endpoint.starts or "responses"
        self.request = FaultyRequest(("responses" if api == "compact" else api) if scope["type"] == "http" else None)
        self._connection = self._state.response
        self._send_body = send
        self._request_body = b""
        self.is_lost = False
        """True if the client was disconnected before a reply in one piece."""

    async def receive(self) -> AsgiMessage:
        """Returns the next message of the client. A complete body tells whether the reply will be a stream."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._request_body += message.get("body", b"")
            if not message.get("more_body", False):
                self.request.streamed = _is_streamed(self._request_body)
        return message

    async def send(self, message: AsgiMessage) -> None:
        """Sends a message of the reply, with its fault."""
        if message["type"] != "http.response.start":
            if not self.is_lost:
                await self._send_body(message)
            return
        fault, self.request.fault = self.request.fault, None
        if fault is None or message["status"] != 200:
            await self._send(message)
        elif self.request.streamed:
            self._state.response = None  # so that the frames come here, and not to the connection directly
            self._send_body = partial(self._send_frames, FaultInjector(fault))
            await self._send(message)
        else:
            await self._start_whole(fault, message)

    async def _start_whole(self, fault: WireFault, start: AsgiMessage) -> None:
        """Starts a reply in one piece."""
        if fault.kind == "broken_arguments":
            self._send_body = partial(self._send_broken, fault, start)
            return
        if fault.kind == "stall":
            waiting = _wait(math.inf if fault.seconds is None else fault.seconds)
            try:
                await run_until_disconnect(self._receive, waiting)
            except ClientDisconnected:
                self.is_lost = True
        elif fault.kind == "reset" and self._connection is not None:
            self._connection.reset_connection()
            self.is_lost = True
        if not self.is_lost:
            await self._send(start)

    async def _send_broken(self, fault: WireFault, start: AsgiMessage, message: AsgiMessage) -> None:
        body = break_json_reply(fault, message["body"])  # it comes in one message
        length = (b"content-length", b"%d" % len(body))
        headers = [length if pair[0] == b"content-length" else pair for pair in start["headers"]]
        await self._send({**start, "headers": headers})
        await self._send({**message, "body": body})

    async def _send_frames(self, injector: FaultInjector, message: AsgiMessage) -> None:
        """Passes the frames of a stream through the injector. Raises `ClientDisconnected` if it ends the stream."""
        is_last = not message["more_body"]
        actions = [action for frame in split_frames(message["body"]) for action in injector.feed(frame)]
        for action in [*actions, *(injector.finish() if is_last else ())]:
            if isinstance(action, WriteBytes):
                await self._send({"type": "http.response.body", "body": action.data, "more_body": True})
            elif isinstance(action, PauseWriting):
                await _wait(action.seconds)
            elif isinstance(action, ResetConnection) and self._connection is not None:
                await asyncio.sleep(FAULT_RESET_DELAY_S)
                self._connection.reset_connection()
                await asyncio.Event().wait()  # the stream is cancelled once the connection is lost
        if is_last and not injector.is_applied:
            _log.warning("the stream has no event that the script's fault is for")
        if is_last or injector.ended:
            await self._send(END_MESSAGE)
        if injector.ended:
            if isinstance(actions[-1], CloseConnection) and self._connection is not None:
                self._connection.close_connection()
            raise ClientDisconnected


def _is_streamed(body: bytes) -> bool | None:
    """Tells whether a request asks for a stream. None: for a background response, which is read later."""
    try:
        fields = msgspec.json.decode(body, type=_BodyFields)
    except (msgspec.DecodeError, UnicodeDecodeError):  # the request will be refused
        return False
    return True if fields.stream else None if fields.background else False


async def _wait(seconds: float) -> None:
    """Waits so long; for ever if `seconds` is infinite."""
    if seconds == math.inf:
        await asyncio.Event().wait()
    await asyncio.sleep(seconds)
