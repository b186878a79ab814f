"""An engine without a model whose start and jobs last as long as a test wants."""

import asyncio

from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, EngineStats, Job, MediaSource, OnChunk


class GatedEngine:
    """Starts once `may_start` is set, ends each job once `may_finish` is set, and closes once `may_close` is set.

    `failure` is what `start` raises.
    """

    def __init__(self) -> None:
        self.may_start, self.may_finish, self.may_close = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for gate in (self.may_start, self.may_finish, self.may_close):
            gate.set()
        self.num_starts = 0
        self.is_running = False
        self.jobs: list[Job] = []
        self.failure: EngineError | None = None
        self._stats = EngineStats()

    @property
    def info(self) -> EngineInfo:
        if not self.is_running:
            raise EngineError("engine_unavailable", "not running", retryable=True)
        return EngineInfo(max_model_len=1000, vocab_size=256)

    def attach_media(self, source: MediaSource) -> None: ...

    async def start(self) -> None:
        self.num_starts += 1
        await self.may_start.wait()
        if self.failure is not None:
            raise self.failure
        self.is_running, self._stats = True, EngineStats()

    async def close(self) -> None:
        self.is_running = False
        self.may_start.set()
        await self.may_close.wait()

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        assert self.is_running, "a job reached an engine that is not loaded"
        self.jobs.append(job)
        on_chunk(Chunk())
        await self.may_finish.wait()
        assert self.is_running, "the engine was unloaded while a job ran"
        self._stats = EngineStats(generated_tokens=self._stats.generated_tokens + 1)
        on_chunk(Chunk(tokens=(97,), finish="length"))

    async def cancel(self, job_id: str) -> None: ...

    async def wait_ready(self) -> None:
        if not self.is_running:
            raise EngineError("engine_unavailable", "the limit of the engine itself is over", retryable=True)

    def unready_reason(self) -> str | None:
        return None if self.is_running else "loading"

    def capacity(self) -> int:
        return 4

    def stats(self) -> EngineStats:
        return self._stats
