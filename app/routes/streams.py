"""A stream of events as an answer of its own: lean, because every token of every client goes through it.

In place of litestar's `Stream`, which runs a task group with a task for the body, and a generator more. What is left
per piece is one message; `app/wire.py` writes it past h11. The pieces come framed, and what is ready at once leaves
in one piece.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from litestar.response import Response

from app.errors import ApiError
from app.gate import App, Receive, Scope, Send

T = TypeVar("T")
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # keeps a proxy from collecting the stream before it passes it on
        (b"content-type", b"text/event-stream; charset=utf-8"),
    ],
}


class EventStream(Response[None]):
    """`pieces`, written one by one. `reading` is entered for as long as they are, and left when the client leaves."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], reading: AbstractContextManager[None]) -> None:
        super().__init__(None, status_code=200)
        self._pieces, self._reading = pieces, reading

    def to_asgi_response(self, *_: object, **__: object) -> App:  # type: ignore[override]  # ready as it is
        """The answer itself: there is nothing that the request could add to it."""
        return self._answer

    async def _answer(self, _: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._pieces):
            with self._reading, contextlib.suppress(Gone):
                await send(START)
                await while_there(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Gone(ApiError):  # noqa: N818  # it is nobody's error
    """The client has left. Nobody reads the answer."""

    def __init__(self) -> None:
        super().__init__(499, "client_closed_request", "The client has left.")


async def while_there(receive: Callable[[], Awaitable[Any]], work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises `Gone`. The body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Gone
    finally:
        for other in (task, gone):
            other.cancel()
        with contextlib.suppress(asyncio.CancelledError, ApiError):
            await task


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    """Returns when the client has left, or has got the whole answer."""
    while (await receive())["type"] != "http.disconnect":
        pass
