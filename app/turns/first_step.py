"""The first step of a response in the store, for which the client of a background response waits."""

import asyncio
from collections.abc import Sequence

from antiphon.app.base.errors import storage_unavailable
from antiphon.app.base.event_log import EventLog
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.base import StoredCompletion
from antiphon.app.store.store import ResponseStore
from antiphon.app.turns.turn import Turn

MAX_FIRST_STEP_WAIT_S = 10.0
"""Time for which the client of a background response waits until it is stored."""
NOT_STORED = "The response store does not answer, so the response was cancelled. Retry later."


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
