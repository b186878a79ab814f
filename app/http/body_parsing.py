"""Parses request bodies: small ones on the event loop, the others in threads, in which no step takes long.

A thread leaves the event loop time to run, unless it is in a long call of C code. So a large body is decoded in slices
and the functions that read the decoded request, which are Python, run in the thread as well.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from antiphon.app.http.sliced_json import decode_in_slices
from antiphon.app.requests.json_body import check_echoed_sizes, invalid_json, parse_object

T = TypeVar("T")

INLINE_BYTES = 32 * 1024
"""Size up to which a body is parsed on the event loop: a thousand values, which take a few milliseconds."""
LARGE_BYTES = 1 << 20
"""Size from which a body is decoded in slices. One call decodes a smaller one in at most 40 ms, usually in 3."""
_executor = ThreadPoolExecutor(1, thread_name_prefix="parse")
_large_executor = ThreadPoolExecutor(1, thread_name_prefix="parse-large")
"""A thread of its own, so that other bodies do not wait for large ones. Each thread more would keep the event loop from
running for longer: threads take turns."""
_history_executor = ThreadPoolExecutor(2, thread_name_prefix="parse-history")
"""Threads of requests that read earlier items, for which they may wait for the database."""


async def parse_body(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in a request's body. Raises `ApiError`: 400, or 413 for too many values."""
    return await run_parser(len(body), _parse_large if len(body) >= LARGE_BYTES else parse_object, body)


async def run_parser(body_bytes: int, parse: Callable[..., T], *values: Any, reads_history: bool = False) -> T:
    """Returns the result of `parse`, which runs where a body of this size is parsed. Raises its errors.

    With `reads_history`, it also reads earlier items, which may have any size.
    """
    if reads_history:
        executor = _history_executor
    elif body_bytes <= INLINE_BYTES:
        return parse(*values)
    else:
        executor = _executor if body_bytes < LARGE_BYTES else _large_executor
    return await asyncio.get_running_loop().run_in_executor(executor, parse, *values)


def _parse_large(body: bytes) -> dict[str, Any]:
    try:
        value = decode_in_slices(body)
    except UnicodeDecodeError:
        raise invalid_json("it is not UTF-8") from None
    except msgspec.DecodeError as error:
        raise invalid_json(str(error)) from None
    if not isinstance(value, dict):
        raise invalid_json("it is not an object")
    check_echoed_sizes(value)
    return value
