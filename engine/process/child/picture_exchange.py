"""Pictures in the worker process: requests of its core to the parent, and the answers."""

import logging
import select
from collections.abc import Callable
from typing import Any

from antiphon.engine.media_messages import MediaArrays
from antiphon.engine.process.descriptors import DescriptorReceiver
from antiphon.engine.process.messages import MediaData, MediaMissing, NeedMedia, Report

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.1
"""Longest time between two steps of a core that waits for pictures, after which it looks at deadlines."""


class PictureExchange:
    """Passes the core's requests on with `send`, and gives it the answers. A core without pictures has none."""

    def __init__(self, core: Any, send: Callable[[Report], None], descriptors: DescriptorReceiver) -> None:
        self._core = core
        self._pictures: Any = getattr(core, "pictures", None)
        self._send, self._descriptors = send, descriptors

    def send_requests(self) -> None:
        """Sends the requests since the last call."""
        if self._pictures is not None:
            for job_id, key in self._pictures.take_requests():
                self._send(NeedMedia(job_id, key))

    def apply_answer(self, answer: MediaData | MediaMissing) -> None:
        """Gives an answer to the core."""
        if isinstance(answer, MediaMissing):
            self._pictures.refuse(answer.job_id, answer.key, answer.message)
            return
        descriptor = self._descriptors.take(answer.number)
        if descriptor is None:
            self._pictures.refuse(answer.job_id, answer.key, "the picture did not arrive")
            return
        media = MediaArrays(arrays=answer.arrays, size=answer.size, descriptor=descriptor)
        self._pictures.provide(answer.job_id, answer.key, media)

    def wait_for_work(self, connection: int) -> None:
        """If no sequence can continue, waits for an encoded picture, input from the parent, or a short time."""
        if self._pictures is not None and self._core.waits_for_pictures and self._core.has_work:
            select.select([connection, self._pictures.wake_descriptor], [], [], IDLE_POLL_S)
