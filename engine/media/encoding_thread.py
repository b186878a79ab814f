"""Encodes pictures on a thread of its own, beside the steps of the engine.

On Linux the thread and the threads that compute for it have a lower priority: while sequences decode, the system gives
most of the cores to their steps, and all of them to the encoder as soon as nothing else runs. So a picture never stops
the streams of others, however long one block of the tower takes.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from antiphon.engine.forward.pictures import ImageFeatures
from antiphon.engine.media.encoder import EncodingCancelled, ImageEncoder
from antiphon.engine.media.features import FeatureKey

ENCODER_NICE = 4
"""Niceness of the encoder. With 4, threads that compete for a core get 29 % of it beside a step's 71 %."""


class EncodingTask(NamedTuple):
    """A picture to encode."""

    key: FeatureKey
    arrays: dict[str, Tensor]
    rows: int


class EncodingResult(NamedTuple):
    """The features of a picture, or why there are none. Both are None if the encoding was cancelled."""

    task: EncodingTask
    features: ImageFeatures | None
    failure: Exception | None


class EncodingThread:
    """Encodes one picture at a time. `on_done` is called on the thread when a result is ready."""

    def __init__(self, encoder: ImageEncoder, on_done: Callable[[], None]) -> None:
        self._encoder, self._on_done = encoder, on_done
        encoder.between_blocks = self._check_cancelled
        self._has_task = threading.Event()
        self._task: EncodingTask | None = None
        self._result: EncodingResult | None = None
        self._is_cancelled = False
        self._thread: threading.Thread | None = None

    @property
    def current(self) -> FeatureKey | None:
        """The picture that is encoded now or whose result was not taken yet."""
        return None if self._task is None else self._task.key

    def begin(self, task: EncodingTask) -> None:
        """Begins to encode. The result of the previous task must have been taken."""
        assert self._task is None
        self._task, self._result, self._is_cancelled = task, None, False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="image-encoder", daemon=True)
            self._thread.start()
        self._has_task.set()

    def cancel(self) -> None:
        """Ends the current task before the next block of the tower."""
        self._is_cancelled = True

    def take_result(self) -> EncodingResult | None:
        """Returns the result of the current task, which then is the current one no more; None if it is not ready."""
        result = self._result
        if result is not None:
            self._task = self._result = None
        return result

    def _check_cancelled(self) -> None:
        if self._is_cancelled:
            raise EncodingCancelled

    def _run(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), ENCODER_NICE)
        torch.set_grad_enabled(False)
        while True:
            self._has_task.wait()
            self._has_task.clear()
            task = self._task
            if task is not None:
                self._result = run_task(self._encoder, task)
                self._on_done()


def run_task(encoder: ImageEncoder, task: EncodingTask) -> EncodingResult:
    """Encodes a picture. An error is returned and never raised."""
    try:
        return EncodingResult(task, encoder.encode(task.arrays, task.rows), None)
    except EncodingCancelled:
        return EncodingResult(task, None, None)
    except Exception as failure:  # noqa: BLE001  it ends the jobs that need the picture
        return EncodingResult(task, None, failure)
