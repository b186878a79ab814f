"""Pictures of jobs, as the parent of a worker sees them: it gives the worker what its source has."""

import asyncio
import logging
import os

from antiphon.engine.media_messages import MediaArrays, MediaUnavailable
from antiphon.engine.process.connection import WorkerConnection
from antiphon.engine.process.messages import MediaData, MediaMissing, NeedMedia
from antiphon.engine.protocol import Job, MediaSource

log = logging.getLogger(__name__)

MEDIA_TIMEOUT_S = 30.0
"""Time that the source has for one picture."""

RETRY_DELAY_S = 0.01
"""Pause before a descriptor is sent again that the worker had no room for."""


class WorkerMedia:
    """Answers the worker's requests for pictures. `source` has them."""

    def __init__(self) -> None:
        self.source: MediaSource | None = None
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add_job(self, job: Job) -> None:
        """Remembers a job that has pictures, until `remove_job`."""
        if job.media:
            self._jobs[job.id] = job

    def remove_job(self, job_id: str) -> None:
        """Forgets a job that has ended."""
        self._jobs.pop(job_id, None)

    def answer(self, need: NeedMedia, connection: WorkerConnection) -> None:
        """Answers a request once the source has done so."""
        task = asyncio.create_task(self._answer(need, connection), name="engine-media")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, need: NeedMedia, connection: WorkerConnection) -> None:
        try:
            media = await self._load(need)
        except MediaUnavailable as error:
            connection.send(MediaMissing(need.job_id, need.key, str(error)))
            return
        except Exception:  # a picture's fault ends its job alone
            log.exception("a picture could not be loaded")
            connection.send(MediaMissing(need.job_id, need.key, "The picture could not be loaded. See the server log."))
            return
        try:
            while True:
                try:
                    number = connection.descriptors.send(media.descriptor)
                    break
                except BlockingIOError:
                    await asyncio.sleep(RETRY_DELAY_S)
        except OSError:  # the worker has exited, and its jobs with it
            return
        finally:
            os.close(media.descriptor)
        connection.send(MediaData(need.job_id, need.key, number, media.arrays, media.size))

    async def _load(self, need: NeedMedia) -> MediaArrays:
        job = self._jobs.get(need.job_id)
        if job is None or self.source is None:
            raise MediaUnavailable("the picture is no longer available")
        try:
            async with asyncio.timeout(MEDIA_TIMEOUT_S):
                return await self.source.load_arrays(job, need.key)
        except TimeoutError:
            raise MediaUnavailable(f"the picture was not prepared within {MEDIA_TIMEOUT_S:g} s") from None
