"""Lines of a command's output, and the requests that a line which is no message was to answer.

A line has a limit: a longer one is skipped to its end, and only its two ends are kept. A line that is no message
belongs to the request that its id names, where only the id of a message can stand. Without one, it belongs to the only
request that waits, if the line claims to be an answer. All others are ignored, as the lines of logs are that some
commands print between messages.
"""

import json
import re
from collections.abc import AsyncIterator, Collection
from typing import Any, Protocol

from msgspec import Struct

LINE_PIECE_BYTES = 64 * 1024
END_BYTES = 1024
"""Bytes that are kept of the beginning and of the end of a line that is too long."""
MAX_SKIPPED_LIMITS = 64
"""Length of a line, in limits of a line, at which the command is stopped: the line may never end."""
RequestId = int | str

_ID_PATTERN = rb'"id"\s*:\s*(?P<id>-?\d{1,18}|"[^"\\]{1,64}")'
_VERSION_PATTERN = rb'"jsonrpc"\s*:\s*"2\.0"'
_FIRST_ID = re.compile(rb"\s*\{\s*(?:" + _VERSION_PATTERN + rb"\s*,\s*)?" + _ID_PATTERN)
_LAST_ID = re.compile(rb",\s*" + _ID_PATTERN + rb"\s*(?:,\s*" + _VERSION_PATTERN + rb"\s*)?\}\s*$")
_MESSAGE = re.compile(rb"\s*\{.*" + _VERSION_PATTERN, re.DOTALL)
_KIND = re.compile(rb'"(method|result|error)"\s*:')


class Line(Struct, frozen=True):
    """A line, or, if it was too long, its beginning and its end."""

    content: bytes
    end: bytes = b""
    is_cut: bool = False


class ByteSource(Protocol):
    """A stream of bytes."""

    async def read(self, n: int, /) -> bytes:
        """Returns up to `n` bytes; none at the end."""
        ...


async def read_lines(source: ByteSource, max_bytes: int) -> AsyncIterator[Line]:
    """Yields the lines of a stream. Raises ValueError for one that does not end."""
    content, end, size = bytearray(), b"", 0
    while piece := await source.read(LINE_PIECE_BYTES):
        for index, part in enumerate(piece.split(b"\n")):
            if index:  # a line feed stood before
                yield Line(bytes(content), end, is_cut=size > max_bytes)
                content, end, size = bytearray(), b"", 0
            size += len(part)
            if size <= max_bytes:
                content += part
                continue
            end = ((end or bytes(content[-END_BYTES:])) + part)[-END_BYTES:]
            content = (content + part)[:END_BYTES] if len(content) < END_BYTES else content[:END_BYTES]
            if size > max_bytes * MAX_SKIPPED_LIMITS:
                raise ValueError("a line does not end")
    if size:
        yield Line(bytes(content), end, is_cut=size > max_bytes)


def find_broken_answer(line: Line, waiting: Collection[RequestId]) -> RequestId | None:
    """Returns the waiting request that a line which is no message was to answer; None if that cannot be told."""
    if not line.is_cut:
        try:
            value = json.loads(line.content.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            pass
        else:
            return _find_answered(value, waiting)
    kind = _KIND.search(line.content[:END_BYTES])
    if kind is not None and kind[1] == b"method":
        return None
    found = _FIRST_ID.match(line.content) or _LAST_ID.search(line.end or line.content[-END_BYTES:])
    if found is not None:
        return _match_id(json.loads(found["id"]), waiting)
    return _find_only(waiting) if _MESSAGE.match(line.content[:END_BYTES]) else None


def _find_answered(value: Any, waiting: Collection[RequestId]) -> RequestId | None:
    """Returns the request that a JSON value was to answer. It is no message, or its texts are none."""
    if not isinstance(value, dict) or "method" in value or {"result", "error"}.isdisjoint(value):
        return None
    return _find_only(waiting) if value.get("id") is None else _match_id(value["id"], waiting)


def _match_id(sent: Any, waiting: Collection[RequestId]) -> RequestId | None:
    return next((each for each in waiting if isinstance(sent, int | str) and str(each) == str(sent)), None)


def _find_only(waiting: Collection[RequestId]) -> RequestId | None:
    return next(iter(waiting)) if len(waiting) == 1 else None
