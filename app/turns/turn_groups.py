"""Turns as groups: those of one request, from its admission to their first step, and the last ones of a process."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Sequence

from msgspec import Struct

from antiphon.app.errors import ApiError, storage_unavailable
from antiphon.app.options.api_keys import ApiKey
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.base import StoredCompletion
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turns.step_writer import SHUTTING_DOWN_MESSAGE
from antiphon.app.turns.turn import Turn

MAX_FIRST_STEP_WAIT_S = 10.0
"""Time for which the client of a stored response waits until it is stored."""
NOT_STORED = "The response store does not answer, so the response was cancelled. Retry later."
CLIENT_LEFT_STATUS = 499
"""Status of a request whose client leaves before its reply begins, as in the access log."""
MAX_PUBLISH_WAIT_S = 2.0
"""Time for which a shutdown waits until the last events of the turns are stored."""


def shutting_down_error() -> ApiError:
    """Returns the error of a turn that this process does not run, since it ends."""
    return ApiError(503, "server_shutting_down", SHUTTING_DOWN_MESSAGE, headers=(("retry-after", "1"),))


class _Preparation(Struct, eq=False):
    """A request whose turns are being prepared. `refusal` is the error that ends the preparation."""

    key: ApiKey
    limit: asyncio.Timeout
    refusal: ApiError | None = None

    def refuse(self, error: ApiError) -> None:
        """Ends the preparation. Only the first call has an effect."""
        if self.refusal is None:
            self.refusal = error
            self.limit.reschedule(asyncio.get_running_loop().time())


class Preparations:
    """Requests that were admitted and whose turns do not run yet: they wait for pictures, tool lists, and rendering."""

    def __init__(self) -> None:
        self._open: set[_Preparation] = set()
        self._ended = asyncio.Event()

    @contextlib.asynccontextmanager
    async def count(self, key: ApiKey) -> AsyncIterator[None]:
        """Counts a request during the block. Raises `ApiError` if it is refused meanwhile."""
        limit = asyncio.timeout(None)
        preparation = _Preparation(key, limit)
        try:
            async with limit:
                self._open.add(preparation)
                try:
                    yield
                finally:
                    self._open.discard(preparation)
                    self._ended.set()
            if preparation.refusal is not None:  # in the cycle of the event loop in which the preparation ended
                raise preparation.refusal
        except TimeoutError:
            if preparation.refusal is None:
                raise
            raise preparation.refusal from None

    def refuse_keys(self, digests: Collection[bytes], error: ApiError) -> int:
        """Refuses the requests with these keys. Returns their number."""
        refused = [each for each in self._open if each.key.digest in digests]
        for each in refused:
            each.refuse(error)
        return len(refused)

    async def wait_ended(self, seconds: float) -> None:
        """Waits until no request is being prepared, at most `seconds`; those that are left are refused with a 503."""
        try:
            async with asyncio.timeout(seconds):
                await self._wait_empty()
        except TimeoutError:
            for each in self._open:
                each.refuse(shutting_down_error())
            await self._wait_empty()

    async def _wait_empty(self) -> None:
        while self._open:
            self._ended.clear()
            await self._ended.wait()


async def abort_turns(turns: Sequence[Turn], error: BaseException) -> None:
    """Ends the turns of a request that cannot start all of them, because of an error. The store never gets them."""
    for turn in turns:
        turn.log.mark_given_up()
        turn.stats.refusal_status = error.status if isinstance(error, ApiError) else CLIENT_LEFT_STATUS
        turn.cancel_turn("client_left")
    await asyncio.gather(*(turn.task for turn in turns), return_exceptions=True)


async def end_turns(turns: Sequence[Turn], deadline: float) -> None:
    """Waits for turns until a time of the monotonic clock, then ends those left.

    Those that another process can continue stay open in the store. The others end as failed.
    """
    if not turns:
        return
    tasks = {turn.task: turn for turn in turns}
    _, pending = await asyncio.wait(tasks, timeout=max(deadline - time.monotonic(), 0.0))
    for task in pending:
        tasks[task].end_for_shutdown()
    if pending:
        await asyncio.wait(pending)


async def wait_published(turns: Sequence[Turn]) -> None:
    """Waits until the last events of turns are visible, for a limited time.

    A connection that closes now would miss the last event, which a store withholds until it is durable.
    """
    publishing = [asyncio.ensure_future(turn.log.wait_published()) for turn in turns]
    if publishing:
        _, waiting = await asyncio.wait(publishing, timeout=MAX_PUBLISH_WAIT_S)
        for task in waiting:
            task.cancel()


async def wait_stored(turns: Sequence[Turn]) -> None:
    """Waits until the first events are stored. Raises `ApiError` 503, and cancels the turns, if that takes long.

    A client that has received a response id must find the response, even if this process crashes.
    """
    try:
        async with asyncio.timeout(MAX_FIRST_STEP_WAIT_S):
            for turn in turns:
                await turn.log.wait_published()
    except TimeoutError:
        for turn in turns:
            turn.cancel_turn("store_unavailable")
        raise storage_unavailable(NOT_STORED) from None


def store_logs(store: ResponseStore, spec: TurnSpec, logs: Sequence[EventLog]) -> None:
    """Stores the logs from now on: each as a response, or all of a chat request as one completion."""
    if spec.stored_chat is None:
        for log in logs:
            store.add_log(log)
        return
    first = logs[0].base_response
    completion = StoredCompletion(
        id=first.id,
        created_at=int(first.created_at),
        model=first.model,
        metadata=first.metadata or {},
        choice_ids=tuple(log.id for log in logs),
        form=spec.stored_chat.form,
    )
    store.add_completion(completion, spec.stored_chat.messages, logs)
