"""Pictures of jobs in the scripted engine, which loads them as an engine with a model does and looks at sizes only."""

import os

import msgspec

from antiphon.engine.media_checks import InvalidArrays, check_arrays
from antiphon.engine.media_messages import MediaUnavailable
from antiphon.engine.protocol import Fault, Job, MediaSource
from antiphon.engine.scripted.script import ScriptedReply, ScriptStep

UNAVAILABLE = "media_unavailable"


class ScriptedMedia:
    """Loads the pictures of jobs from `source`, if there is one."""

    def __init__(self) -> None:
        self.source: MediaSource | None = None
        self.num_loaded = 0

    async def answer(self, job: Job, reply: ScriptedReply) -> tuple[ScriptedReply, Fault | None]:
        """Returns the reply with text in the place of each `{media = true}`, and the fault if a picture is missing."""
        sizes: dict[bytes, int] = {}
        for span in job.media:
            if span.key not in sizes:
                try:
                    sizes[span.key] = await self._load_size(job, span.key)
                except MediaUnavailable as error:
                    return reply, Fault(UNAVAILABLE, str(error), retryable=True)
                except InvalidArrays as error:
                    return reply, Fault("server_error", f"invalid arrays of a picture: {error}")
        images = ", ".join(f"{span.rows} tokens of {sizes[span.key]} bytes" for span in job.media)
        text = f"{len(job.media)} image{'' if len(job.media) == 1 else 's'}" + (f": {images}" if images else "")
        output = tuple(text if isinstance(entry, ScriptStep) and entry.media else entry for entry in reply.output)
        return msgspec.structs.replace(reply, output=output), None

    async def _load_size(self, job: Job, key: bytes) -> int:
        if self.source is None:
            raise MediaUnavailable("this engine has no source of pictures")
        media = await self.source.load_arrays(job, key)
        try:
            check_arrays(media)
        finally:
            os.close(media.descriptor)
        self.num_loaded += 1
        return media.size
