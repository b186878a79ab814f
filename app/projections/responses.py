"""The log as the Responses API tells it: its events as they are, or the response of the last one."""

from collections.abc import AsyncGenerator

import msgspec

from app.log import Log
from events import sse

PING_AFTER = 15.0
"""Seconds of silence after which a comment goes out: proxies close streams that say nothing."""


async def stream(log: Log, start: int = 0) -> AsyncGenerator[bytes, None]:
    """The events from number `start` on, framed; what is there at once leaves in one piece."""
    async for frames in log.follow(start, idle=PING_AFTER):
        yield b"".join([sse.frame(f.event, f.data) for f in frames]) or sse.PING
    yield sse.DONE


async def final(log: Log) -> bytes:
    """The response in its terminal state: the one in the stream's last event."""
    return msgspec.json.encode(await log.finished())


def snapshot(log: Log) -> bytes:
    """The response as it is now."""
    return msgspec.json.encode(log.response)
