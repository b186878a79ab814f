"""An engine's chunks as a stream that a test can take one by one."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from antiphon.engine.protocol import Chunk, Engine, Job


async def listen(engine: Engine, job: Job) -> AsyncGenerator[Chunk, None]:
    """The job's chunks; raises what `generate` raises. To close the stream is to leave the job."""
    heard: asyncio.Queue[Chunk | None] = asyncio.Queue()
    work = asyncio.create_task(engine.generate(job, heard.put_nowait))
    work.add_done_callback(lambda _: heard.put_nowait(None))
    try:
        while (chunk := await heard.get()) is not None:
            yield chunk
        work.result()
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await work
