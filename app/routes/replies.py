"""How a reading of a log leaves as an HTTP answer, and what becomes of a turn whose reader has gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any, TypeVar

from litestar.response import Response, Stream

from app.errors import ApiError
from app.house import AnyRequest, House, house, owner
from app.log import Log
from app.requests.responses import Asked

T = TypeVar("T")
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""The second keeps a proxy from collecting the stream before it passes it on."""


def json_reply(body: bytes, status: int = 200) -> Response[bytes]:
    """JSON that is encoded already."""
    return Response(body, status_code=status, media_type="application/json")


def stream_reply(frames: AsyncIterator[bytes]) -> Response[Any]:
    """Frames that are framed already, each written in one piece."""
    return Stream(frames, status_code=200, media_type="text/event-stream", headers=STREAM_HEADERS)


async def open_turns(request: AnyRequest, asked: Asked) -> list[Log]:
    """Start the turns of a request. A client that leaves meanwhile takes them with it."""
    return await unless_gone(request, house(request).turns.open_all(asked.model, asked.spec, owner(request)))


async def pour(frames: AsyncIterator[bytes], home: House, logs: Sequence[Log]) -> AsyncIterator[bytes]:
    """The frames of these logs, to one reader."""
    with attended(home, logs):
        async for frame in frames:
            yield frame


async def collect(request: AnyRequest, reading: Awaitable[bytes], logs: Sequence[Log]) -> bytes:
    """A whole reading. No server notices by itself that the reader of an unstreamed reply has gone."""
    with attended(house(request), logs):
        return await unless_gone(request, reading)


@contextlib.contextmanager
def attended(home: House, logs: Sequence[Log]) -> Iterator[None]:
    """While somebody reads these logs. When the last reader of one leaves, its turn is cancelled."""
    for log in logs:
        log.readers += 1
    try:
        yield
    finally:
        for log in logs:
            log.readers -= 1
            if not log.readers:
                home.turns.cancel(log)


async def unless_gone(request: AnyRequest, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises `ApiError` 499, which nobody reads."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(499, "client_closed_request", "The client has left.")
    finally:
        for other in (task, gone):
            other.cancel()
        with contextlib.suppress(asyncio.CancelledError, ApiError):
            await task


async def _gone(request: AnyRequest) -> None:
    """Returns when the client has left. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
