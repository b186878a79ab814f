"""How a reading of a log leaves as an HTTP answer, and what becomes of a turn whose reader has gone."""

import contextlib
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, TypeVar

from litestar.response import Response

from antiphon.app.context import AnyRequest, House, house, owner
from antiphon.app.event_log import Log
from antiphon.app.http.stream_writer import Telling
from antiphon.app.requests.responses import Asked
from antiphon.app.routes.event_stream import EventStream, while_there

T = TypeVar("T")


def json_reply(body: bytes, status: int = 200) -> Response[bytes]:
    """JSON that is encoded already."""
    return Response(body, status_code=status, media_type="application/json")


def stream_reply(telling: Telling, home: House) -> Response[Any]:
    """What a face of the wire tells of its logs, to one reader."""
    return EventStream(telling, attended(home, telling.logs))


async def open_turns(request: AnyRequest, asked: Asked) -> list[Log]:
    """Start the turns of a request. A client that leaves meanwhile takes them with it."""
    return await unless_gone(request, house(request).turns.open_all(asked.model, asked.spec, owner(request)))


async def collect(request: AnyRequest, reading: Awaitable[bytes], logs: Sequence[Log]) -> bytes:
    """A whole reading. No server notices by itself that the reader of an unstreamed reply has gone."""
    with attended(house(request), logs):
        return await unless_gone(request, reading)


@contextlib.contextmanager
def attended(home: House, logs: Sequence[Log]) -> Iterator[None]:
    """While somebody reads these logs.

    When the last reader of one leaves, its turn is cancelled, unless it was asked for in the background.
    """
    for log in logs:
        log.readers += 1
    try:
        yield
    finally:
        for log in logs:
            log.readers -= 1
            if not log.readers and not log.head.background:
                home.turns.cancel(log)


async def unless_gone(request: AnyRequest, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves: that raises what nobody reads."""
    return await while_there(request.receive, work)
