"""How a reading of a log leaves as an HTTP answer, and what becomes of a turn whose reader has gone."""

import contextlib
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, TypeVar

from litestar.response import Response

from antiphon.app.context import AnyRequest, ServerContext, server_context
from antiphon.app.event_log import EventLog
from antiphon.app.http.request_state import request_state
from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.requests.turn_spec import ParsedRequest
from antiphon.app.routes.event_stream import EventStreamResponse, run_until_disconnect

T = TypeVar("T")


def json_reply(body: bytes, status: int = 200) -> Response[bytes]:
    """JSON that is encoded already."""
    return Response(body, status_code=status, media_type="application/json")


def stream_reply(telling: StreamEncoder, home: ServerContext) -> Response[Any]:
    """What a face of the wire tells of its logs, to one reader."""
    return EventStreamResponse(telling, count_readers(home, telling.logs))


async def open_turns(request: AnyRequest, asked: ParsedRequest) -> list[EventLog]:
    """Start the turns of a request. A client that leaves meanwhile takes them with it."""
    state, turns = request_state(request.scope), server_context(request).turn_manager
    starting = turns.start_choices(asked.model, asked.spec, state.owner, state.release_permit)
    return await cancel_on_disconnect(request, starting)


async def final_reply(request: AnyRequest, reading: Awaitable[bytes], logs: Sequence[EventLog]) -> bytes:
    """A whole reading. No server notices by itself that the reader of an unstreamed reply has gone."""
    with count_readers(server_context(request), logs):
        return await cancel_on_disconnect(request, reading)


@contextlib.contextmanager
def count_readers(home: ServerContext, logs: Sequence[EventLog]) -> Iterator[None]:
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
            if not log.readers and not log.base_response.background:
                home.turn_manager.cancel_turn(log)


async def cancel_on_disconnect(request: AnyRequest, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves: that raises what nobody reads."""
    return await run_until_disconnect(request.receive, work)
