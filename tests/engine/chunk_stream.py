"""An async iterator over an engine's chunks, for tests that read them one at a time."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from antiphon.engine.protocol import Chunk, Engine, EngineError, Job


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


async def collect_chunks(engine: Engine, job: Job) -> list[Chunk]:
    return [chunk async for chunk in stream_chunks(engine, job)]


async def get_error_code(engine: Engine, job: Job) -> str:
    with pytest.raises(EngineError) as caught:
        await collect_chunks(engine, job)
    return caught.value.code
