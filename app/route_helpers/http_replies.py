"""Sends projections of logs as HTTP responses, and cancels turns whose last reader has disconnected."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from litestar.response import Response
from msgspec import structs

from antiphon.app.context import AnyRequest, ServerContext, server_context
from antiphon.app.errors import ApiError
from antiphon.app.http.body_parsing import LARGE_BYTES
from antiphon.app.http.request_state import request_state
from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.turn_spec import ParsedRequest, TurnSpec
from antiphon.app.route_helpers.event_stream import EventStreamResponse, run_until_disconnect
from antiphon.app.turn_types.event_log import EventLog

T = TypeVar("T")

MAX_LOST_WAIT_S = 15.0
"""Time for which a request waits for the end of a response after another server has taken it over."""
LOST_MESSAGE = (
    "Another server has taken the response over, because this one did not answer for too long. "
    "Retrieve the response later, if it is stored, or retry the request."
)


def json_reply(content: object, status: int = 200) -> Response[bytes]:
    """Returns a response with a JSON body: the content, encoded unless it is bytes already."""
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Response(body, status_code=status, media_type="application/json")


def stream_reply(encoder: StreamEncoder, context: ServerContext) -> Response[Any]:
    """Returns a response that streams the encoder's logs to one client."""
    return EventStreamResponse(encoder, _count_stream(context, encoder.logs))


@contextlib.contextmanager
def _count_stream(context: ServerContext, logs: Sequence[EventLog]) -> Iterator[None]:
    """Counts a stream of these logs, and one more reader of each, during the block."""
    stats = logs[0].stats
    with (
        context.metrics.requests.count_stream("responses" if stats is None else stats.api),
        count_readers(context, logs),
    ):
        yield


async def start_turns(request: AnyRequest, parsed: ParsedRequest[Any]) -> list[EventLog]:
    """Starts the turns of a request; they are cancelled if the client disconnects before they have started."""
    return await start_prompts(request, parsed.model, (parsed.spec,))


async def start_prompts(request: AnyRequest, model: ServedModel, specs: Sequence[TurnSpec]) -> list[EventLog]:
    """Does the same for several prompts."""
    state, context = request_state(request.scope), server_context(request)
    if state.turn_admission is not None:
        specs = await state.turn_admission.admit(model, specs)
    origin = state.build_origin()
    if context.turn_manager.recorder is not None:
        origin = structs.replace(origin, body=await request.body())
    starting = asyncio.create_task(
        context.turn_manager.start_prompts(
            model,
            specs,
            state.owner,
            state.release_permit,
            origin=origin,
            is_large=state.body_bytes >= LARGE_BYTES,
        )
    )
    try:
        logs = await cancel_on_disconnect(request, starting)
    except BaseException:
        cancel_started(context, starting)
        raise
    state.turns = tuple(log.stats for log in logs if log.stats is not None)
    return logs


def cancel_started(context: ServerContext, starting: "asyncio.Task[list[EventLog]]") -> None:
    """Cancels turns that have started although the request that waited for them was cancelled.

    A task may complete in the same iteration of the event loop in which the one that waits for it is cancelled.
    """
    if starting.done() and not starting.cancelled() and starting.exception() is None:
        with count_readers(context, starting.result(), knows_id=False):
            pass


async def final_reply(request: AnyRequest, reply: Awaitable[T], logs: Sequence[EventLog]) -> T:
    """Returns a complete reply. Cancels it if the client disconnects, which no ASGI server does by itself.

    Raises `ApiError` 503 if another server has taken a response over, and does not end it within `MAX_LOST_WAIT_S`.
    """
    try:
        async with asyncio.timeout(None) as limit:
            with count_readers(server_context(request), logs, knows_id=False), _limit_lost(logs, limit):
                return await cancel_on_disconnect(request, reply)
    except TimeoutError:
        if not limit.expired():
            raise
        raise ApiError(503, "response_lost", LOST_MESSAGE, headers=(("retry-after", "1"),)) from None


@contextlib.contextmanager
def _limit_lost(logs: Sequence[EventLog], limit: asyncio.Timeout) -> Iterator[None]:
    """Sets the limit as soon as one of the logs is lost during the block."""

    def set_limit() -> None:
        limit.reschedule(asyncio.get_running_loop().time() + MAX_LOST_WAIT_S)

    for log in logs:
        log.on_lost = set_limit
        if log.is_lost:
            set_limit()
    try:
        yield
    finally:
        for log in logs:
            log.on_lost = lambda: None


@contextlib.contextmanager
def count_readers(context: ServerContext, logs: Sequence[EventLog], *, knows_id: bool = True) -> Iterator[None]:
    """Counts one more reader of each log during the block.

    When the last reader of a log is done, its turn ends at once or later: see `LeftTurns`. `knows_id`: the client
    knows the ids of the logs.
    """
    for log in logs:
        log.readers += 1
        log.was_read = True
        context.turn_manager.join_turn(log)
    try:
        yield
    finally:
        for log in logs:
            log.readers -= 1
            if not log.readers:
                context.turn_manager.leave_turn(log, knows_id=knows_id)


async def cancel_on_disconnect(request: AnyRequest, work: Awaitable[T]) -> T:
    """Returns the result of `work`. If the client disconnects first, cancels `work` and raises `ClientDisconnected`."""
    return await run_until_disconnect(request.receive, work)
