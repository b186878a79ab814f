"""Responses that are event streams. Every token of every client passes through them, so their overhead is small.

They replace litestar's `Stream`, which needs a task group, a task for the body and a generator. Here the pump writes to
the connection directly, past litestar and h11; only the head and the end of a response are ASGI messages.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from litestar.response import Response

from antiphon.app.errors import ApiError
from antiphon.app.http.asgi import AsgiApp, AsgiReceive, AsgiScope, AsgiSend
from antiphon.app.http.request_state import request_state
from antiphon.app.http.stream_writer import StreamEncoder, pump
from antiphon.app.turn_types.event_log import LogDivergedError

T = TypeVar("T")
START_MESSAGE = {"type": "http.response.start", "status": 200}
START_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # keeps a proxy from buffering the stream
    (b"content-type", b"text/event-stream; charset=utf-8"),
)
END_MESSAGE = {"type": "http.response.body", "body": b"", "more_body": False}


class EventStreamResponse(Response[None]):
    """A stream that `encoder` encodes. `reading_context` is active until the stream ends or is disconnected."""

    def __init__(self, encoder: StreamEncoder, reading_context: AbstractContextManager[None]) -> None:
        super().__init__(None, status_code=200)
        self._encoder, self._reading_context = encoder, reading_context

    def to_asgi_response(self, *_: object, **__: object) -> AsgiApp:  # type: ignore[override]  # needs no arguments
        """Returns the ASGI application that sends the stream; it does not depend on the request."""
        return self._stream

    async def _stream(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        with self._reading_context, contextlib.suppress(ClientDisconnected):
            added = [(name.encode(), str(value).encode()) for name, value in self.headers.items()]
            await send({**START_MESSAGE, "headers": [*START_HEADERS, *added]})
            response = request_state(scope).response
            sink = response if response is not None and response.can_write else AsgiSink(send)
            try:
                await run_until_disconnect(receive, pump(self._encoder, sink))
            except LogDivergedError:
                if response is not None and response.can_write:
                    response.close_connection()  # without an end of the body, so that the client knows and resumes
                    await wait_disconnect(receive)
                    return
            await send(END_MESSAGE)


class AsgiSink:
    """A `ChunkSink` that sends each chunk as an ASGI message, for connections without a `ChunkedResponse`."""

    def __init__(self, send: AsgiSend) -> None:
        self._send = send
        self._chunk = b""

    @property
    def write_paused(self) -> bool:
        """True while a chunk waits for `drain`."""
        return bool(self._chunk)

    def write_chunk(self, chunk: bytes) -> None:
        """Holds a chunk until `drain` sends it."""
        self._chunk = chunk

    async def drain(self) -> None:
        """Sends the held chunk, if there is one."""
        piece, self._chunk = self._chunk, b""
        if piece:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})


class ClientDisconnected(ApiError):  # noqa: N818  # a normal event, not an error
    """The client has disconnected, so the response is never read."""

    def __init__(self) -> None:
        super().__init__(499, "client_closed_request", "The client disconnected.")


async def run_until_disconnect(receive: Callable[[], Awaitable[Any]], work: Awaitable[T]) -> T:
    """Returns the result of `work`. If the client disconnects first, cancels `work` and raises `ClientDisconnected`.

    The request body must have been read.
    """
    task = asyncio.ensure_future(work)
    disconnected = asyncio.create_task(wait_disconnect(receive))
    try:
        await asyncio.wait({task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        for pending in (task, disconnected):
            pending.cancel()
        with contextlib.suppress(asyncio.CancelledError, ApiError):
            await task


async def wait_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    """Returns when the client has disconnected, or has received the whole response."""
    while (await receive())["type"] != "http.disconnect":
        pass
