"""An engine that writes what another engine does to a file."""

import asyncio
from collections.abc import Callable

import structlog

from antiphon.app.registry.engine_wrapper import EngineWrapper
from antiphon.app.scripted.recording_file import RecordedJob, RecordingFile
from antiphon.engine.protocol import Chunk, Engine, EngineError, EngineInfo, EngineStats, Job, OnChunk
from antiphon.engine.scripted.script import Recording

_log = structlog.get_logger(__name__)


class RecordingEngine(EngineWrapper):
    """Passes everything to `inner`, and records each job that has ended.

    A job that was cancelled before its admission is not recorded. `describe` returns the head of the file once the
    engine has started.
    """

    def __init__(self, inner: Engine, file: RecordingFile, describe: Callable[[EngineInfo], Recording]) -> None:
        self.inner, self._file, self._describe = inner, file, describe

    @property
    def info(self) -> EngineInfo:
        """Fixed properties of the engine."""
        return self.inner.info

    async def start(self) -> None:
        """Starts the engine, then creates the file: an engine that cannot start leaves none."""
        await self.inner.start()
        self._file.create_file(self._describe(self.inner.info))

    async def close(self) -> None:
        """Closes the engine, then the file."""
        await self.inner.close()
        self._file.close()

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Runs the job, and records it unless it was cancelled before its admission."""
        if job.prefill_only:
            await self.inner.generate(job, on_chunk)
            return
        recorded = RecordedJob(job, asyncio.get_running_loop().time)

        def record_chunk(chunk: Chunk) -> None:
            recorded.add_chunk(chunk)
            on_chunk(chunk)

        try:
            await self.inner.generate(job, record_chunk)
        except EngineError as error:
            if error.code != "cancelled":
                recorded.add_refusal(error)
            raise
        except asyncio.CancelledError:
            if recorded.is_admitted:
                recorded.add_cancellation()
            raise
        finally:
            self._write_job(recorded)

    async def cancel(self, job_id: str) -> None:
        """Ends a job."""
        await self.inner.cancel(job_id)

    async def wait_ready(self) -> None:
        """Returns as soon as a job would be accepted. Raises `EngineError` if `generate` would."""
        await self.inner.wait_ready()

    def unready_reason(self) -> str | None:
        """Returns the reason why a job would have to wait, or None."""
        return self.inner.unready_reason()

    def capacity(self) -> int:
        """Returns the maximum number of jobs."""
        return self.inner.capacity()

    def stats(self) -> EngineStats:
        """Returns the current counts."""
        return self.inner.stats()

    def _write_job(self, recorded: RecordedJob) -> None:
        """Writes a job. A full disk costs the recording, not the reply."""
        if not recorded.steps:
            return
        try:
            self._file.write_job(recorded)
        except OSError as error:
            _log.error("the recording could not be written", error=str(error))
