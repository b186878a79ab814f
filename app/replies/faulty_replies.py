"""Replies with a fault: a stream whose frames pass through a `FaultInjector`, and a reply in one piece."""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager

import structlog

from antiphon.app.base.errors import ApiError
from antiphon.app.base.event_log import EventLog
from antiphon.app.context import AnyRequest
from antiphon.app.http.asgi import AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.request_state import request_state
from antiphon.app.http.stream_writer import ChunkSink, StreamEncoder, pump
from antiphon.app.projections.chat import ChatStream
from antiphon.app.projections.completions.stream import CompletionStream
from antiphon.app.projections.messages.stream import MessagesStream
from antiphon.app.replies.event_stream import (
    END_MESSAGE,
    START_MESSAGE,
    AsgiSink,
    ClientDisconnected,
    EventStreamResponse,
    run_until_disconnect,
    wait_disconnect,
)
from antiphon.app.scripted.faults import ScriptFaults
from antiphon.kit.faults import (
    CloseConnection,
    FaultInjector,
    PauseWriting,
    ResetConnection,
    WireAction,
    WireFault,
    WriteBytes,
    break_json_reply,
    split_frames,
)
from antiphon.kit.faults.fault import ApiName

RESET_DELAY_S = 0.05
"""Time before a reset in which what was written reaches the client."""

_log = structlog.get_logger(__name__)


def api_of_encoder(encoder: StreamEncoder) -> ApiName:
    """Returns the API whose streams an encoder writes."""
    if isinstance(encoder, ChatStream):
        return "chat"
    if isinstance(encoder, MessagesStream):
        return "messages"
    return "completions" if isinstance(encoder, CompletionStream) else "responses"


def api_of_path(path: str) -> ApiName:
    """Returns the API that a path belongs to."""
    if path.startswith("/v1/messages"):
        return "messages"
    if path.startswith("/v1/completions"):
        return "completions"
    return "chat" if path.startswith("/v1/chat/") else "responses"


class FaultyStreamResponse(EventStreamResponse):
    """A stream with a fault."""

    def __init__(self, encoder: StreamEncoder, reading_context: AbstractContextManager[None], fault: WireFault) -> None:
        super().__init__(encoder, reading_context)
        self._fault = fault

    async def _stream(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        response = request_state(scope).response
        with self._reading_context, contextlib.suppress(ClientDisconnected):
            await send(START_MESSAGE)
            sink = FaultSink(response if response is not None and response.can_write else AsgiSink(send), self._fault)
            try:
                await run_until_disconnect(receive, _pump_with_fault(self._encoder, sink))
            except StreamEndedError as end:
                if isinstance(end.action, ResetConnection) and response is not None:
                    await asyncio.sleep(RESET_DELAY_S)
                    response.reset_connection()
                    await wait_disconnect(receive)
                    return
                await send(END_MESSAGE)
                if isinstance(end.action, CloseConnection) and response is not None:
                    response.close_connection()
                return
            await send(END_MESSAGE)


class StreamEndedError(Exception):
    """Ends a stream before its encoder has ended it. `action` is the way in which the connection ends, if it does."""

    def __init__(self, action: WireAction | None) -> None:
        super().__init__("the stream was ended by a fault")
        self.action = action


class FaultSink:
    """A `ChunkSink` that passes frames through a fault injector and writes what that returns, in its time."""

    def __init__(self, sink: ChunkSink, fault: WireFault) -> None:
        self._sink = sink
        self._injector = FaultInjector(fault)
        self._actions: deque[WireAction] = deque()

    @property
    def is_applied(self) -> bool:
        """True once the fault has happened."""
        return self._injector.is_applied

    @property
    def write_paused(self) -> bool:
        """True while something is to be written, waited for or ended in `drain`."""
        return bool(self._actions) or self._injector.ended or self._sink.write_paused

    def write_chunk(self, chunk: bytes) -> None:
        """Passes the frames of a chunk to the injector, and writes what needs no wait."""
        for frame in split_frames(chunk):
            self._actions += self._injector.feed(frame)
        self._write_ready()

    def finish_stream(self) -> None:
        """Writes the frames that the injector has held back."""
        self._actions += self._injector.finish()
        self._write_ready()

    async def drain(self) -> None:
        """Carries out all actions. Raises `StreamEndedError` if the stream is over."""
        await self._sink.drain()
        while self._actions:
            action = self._actions.popleft()
            if isinstance(action, WriteBytes):
                self._sink.write_chunk(action.data)
                await self._sink.drain()
            elif isinstance(action, PauseWriting):
                await _wait(action.seconds)
            else:
                raise StreamEndedError(action)
        if self._injector.ended:
            raise StreamEndedError(None)

    def _write_ready(self) -> None:
        while self._actions and isinstance(self._actions[0], WriteBytes) and not self._sink.write_paused:
            self._sink.write_chunk(self._actions[0].data)
            self._actions.popleft()


def break_stream(
    encoder: StreamEncoder, reading_context: AbstractContextManager[None], faults: ScriptFaults
) -> EventStreamResponse:
    """Returns the response that streams the encoder's logs, with their fault if they have one. Raises `ApiError`."""
    try:
        fault = faults.take_fault(encoder.logs, api_of_encoder(encoder), streamed=True)
    except ApiError:
        with reading_context:  # its end cancels the turns
            raise
    if fault is None:
        return EventStreamResponse(encoder, reading_context)
    return FaultyStreamResponse(encoder, reading_context, fault)


async def break_reply(
    request: AnyRequest, reply: Awaitable[bytes], logs: Sequence[EventLog], faults: ScriptFaults
) -> bytes:
    """Returns a complete reply, with its fault if it has one. Raises `ApiError`; `ClientDisconnected` after a reset."""
    working = asyncio.ensure_future(reply)
    try:
        fault = faults.take_fault(logs, api_of_path(request.url.path), streamed=False)
        body = await working
    finally:
        working.cancel()
    if fault is None:
        return body
    response = request_state(request.scope).response
    if fault.kind == "stall":
        await _wait(math.inf if fault.seconds is None else fault.seconds)
    elif fault.kind == "reset" and response is not None:
        response.reset_connection()
        raise ClientDisconnected
    return break_json_reply(fault, body) if fault.kind == "broken_arguments" else body


async def _pump_with_fault(encoder: StreamEncoder, sink: FaultSink) -> None:
    await pump(encoder, sink)
    sink.finish_stream()
    await sink.drain()
    if not sink.is_applied:
        _log.warning("the stream has no event that the script's fault is for")


async def _wait(seconds: float) -> None:
    """Waits so long; for ever if `seconds` is infinite."""
    if seconds == math.inf:
        await asyncio.Event().wait()
    await asyncio.sleep(seconds)
