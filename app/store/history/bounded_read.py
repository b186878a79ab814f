"""The limit of the time for which a request waits for a read that a thread does: a disk may not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from antiphon.app.errors import storage_unavailable

T = TypeVar("T")
P = ParamSpec("P")

MAX_READ_WAIT_S = 60.0
"""Longest wait for a read of the store in a thread. Long histories take seconds."""
READ_OVERDUE = "The response store does not answer. Retry later."


async def bound_read(reading: Awaitable[T]) -> T:
    """Returns the result of a read. Raises `ApiError` 503 if there is none after `MAX_READ_WAIT_S`.

    The thread continues, since nothing can stop it; its result is dropped.
    """
    try:
        async with asyncio.timeout(MAX_READ_WAIT_S) as limit:
            return await reading
    except TimeoutError:
        if not limit.expired():
            raise
        raise storage_unavailable(READ_OVERDUE) from None


async def read_in_thread(read: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
    """Returns the result of a function that reads the store, which runs in a thread: see `bound_read`."""
    return await bound_read(asyncio.to_thread(read, *values, **named))
