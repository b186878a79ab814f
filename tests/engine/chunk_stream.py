"""An async iterator over an engine's chunks, for tests that read them one at a time."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from antiphon.engine.protocol import Chunk, Engine, Job


async def stream_chunks(engine: Engine, job: Job) -> AsyncGenerator[Chunk, None]:
    """Yields the job's chunks and raises what `generate` raises. Closing the stream cancels the task of the job."""
    chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()
    task = asyncio.create_task(engine.generate(job, chunks.put_nowait))
    task.add_done_callback(lambda _: chunks.put_nowait(None))
    try:
        while (chunk := await chunks.get()) is not None:
            yield chunk
        task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
