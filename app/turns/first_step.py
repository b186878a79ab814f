"""The wait of a background response for its first step in the store."""

import asyncio
from collections.abc import Sequence

from antiphon.app.base.errors import storage_unavailable
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
            turn.cancel_turn()
        raise storage_unavailable(NOT_STORED) from None
