"""A stream of events as an answer of its own: lean, because every token of every client goes through it.

In place of litestar's `Stream`, which runs a task group with a task for the body, and a generator more. Here the pump
writes to the connection itself, past litestar and h11; only the head and the end of the answer are messages of ASGI's.
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

T = TypeVar("T")
START_MESSAGE = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # keeps a proxy from collecting the stream before it passes it on
        (b"content-type", b"text/event-stream; charset=utf-8"),
    ],
}
END_MESSAGE = {"type": "http.response.body", "body": b"", "more_body": False}


class EventStreamResponse(Response[None]):
    """A telling, written piece by piece. `reading` is entered for as long as it is, and left when the client leaves."""

    def __init__(self, telling: StreamEncoder, reading: AbstractContextManager[None]) -> None:
        super().__init__(None, status_code=200)
        self._telling, self._reading = telling, reading

    def to_asgi_response(self, *_: object, **__: object) -> AsgiApp:  # type: ignore[override]  # ready as it is
        """The answer itself: there is nothing that the request could add to it."""
        return self._stream

    async def _stream(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        with self._reading, contextlib.suppress(ClientDisconnected):
            await send(START_MESSAGE)
            response = request_state(scope).response
            sink = response if response is not None and response.can_write else AsgiSink(send)
            await run_until_disconnect(receive, pump(self._telling, sink))
            await send(END_MESSAGE)


class AsgiSink:
    """The pipe of a connection that has no other: each piece is a message of ASGI's."""

    def __init__(self, send: AsgiSend) -> None:
        self._send = send
        self._piece = b""

    @property
    def write_paused(self) -> bool:
        """Whether a piece still has to be sent."""
        return bool(self._piece)

    def write_chunk(self, piece: bytes) -> None:
        """Send a piece with the next `drained`."""
        self._piece = piece

    async def drain(self) -> None:
        """Send it."""
        piece, self._piece = self._piece, b""
        if piece:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})


class ClientDisconnected(ApiError):  # noqa: N818  # it is nobody's error
    """The client has left. Nobody reads the answer."""

    def __init__(self) -> None:
        super().__init__(499, "client_closed_request", "The client has left.")


async def run_until_disconnect(receive: Callable[[], Awaitable[Any]], work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises `Gone`. The body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_wait_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        for other in (task, gone):
            other.cancel()
        with contextlib.suppress(asyncio.CancelledError, ApiError):
            await task


async def _wait_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    """Returns when the client has left, or has got the whole answer."""
    while (await receive())["type"] != "http.disconnect":
        pass
