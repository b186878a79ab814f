"""Gets the features of pictures for running sequences: from the cache, or from arrays that the parent process sends.

A picture that several sequences need is asked for and encoded once. Only the first picture that a sequence has not
computed yet, and the one after it if there is room, are fetched: a sequence with a hundred pictures holds two, or those
that one pass must compute together.
"""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.media.arrays import map_arrays
from antiphon.engine.media.encoder import ImageEncoder
from antiphon.engine.media.encoding_thread import EncodingResult, EncodingTask, EncodingThread, run_task
from antiphon.engine.media.features import FeatureCache, FeatureKey
from antiphon.engine.media.positions import counts_in_grids, find_positions
from antiphon.engine.media.sequence_pictures import SequencePictures
from antiphon.engine.media_checks import InvalidArrays
from antiphon.engine.media_messages import MediaArrays
from antiphon.engine.protocol import EngineError, Fault, Job

log = logging.getLogger(__name__)

LOOKAHEAD = 2
"""Pictures of a sequence that are fetched at once."""

ENCODING_FAILED = Fault("server_error", "A picture could not be encoded. See the server log.", retryable=False)


class PictureUser(Protocol):
    """A running sequence."""

    job: Job
    pictures: SequencePictures | None
    num_computed_tokens: int

    @property
    def queue_rank(self) -> tuple[int, int]:
        """Sort key of priority and arrival."""
        ...


class ImageScheduler:
    """Pictures of all sequences of a core.

    `soft_ids` are the tokens that stand for pictures. `two_way`: the tokens of a picture see all of it.
    Passes over prompts end at multiples of `alignment`. `max_bytes` limits the features that are kept. On an
    accelerator, a picture is encoded between two steps, by `update`; on a CPU, beside the steps.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        encoder: ImageEncoder,
        *,
        soft_ids: Iterable[int],
        two_way: bool,
        alignment: int,
        max_bytes: int,
    ) -> None:
        self._model, self._encoder, self._two_way, self._alignment = model, encoder, two_way, alignment
        self._soft_ids = np.array(sorted(soft_ids))
        self._has_grids = counts_in_grids(model)
        self.cache = FeatureCache(max_bytes)
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        self._thread = None if model.device.type != "cpu" else EncodingThread(encoder, self._wake)
        self._asked: dict[FeatureKey, str] = {}
        """Id of the job for which each picture was asked for."""
        self._tasks: dict[FeatureKey, EncodingTask] = {}
        """Pictures to encode; those in `_asked` have no arrays yet."""
        self._requests: list[tuple[str, bytes]] = []
        self._faults: dict[FeatureKey, Fault] = {}
        self._job_faults: dict[tuple[str, bytes], Fault] = {}
        self._fresh: set[FeatureKey] = set()
        """Pictures in the cache that were encoded for a sequence which did not take them yet."""
        self._row_bytes = 0
        self.num_encoded = self.num_hits = 0

    @property
    def wake_descriptor(self) -> int:
        """Descriptor that becomes readable when a picture has been encoded."""
        return self._wake_read

    def place_images(self, job: Job) -> SequencePictures | None:
        """Returns the pictures of a job; None if it has none. Raises `EngineError` if they do not fit its tokens."""
        if not job.media:
            return None
        is_soft = np.isin(np.array(job.tokens), self._soft_ids)
        try:
            positions = find_positions(self._model, job, is_soft) if self._has_grids else None
        except Exception as failure:  # a model's own code fails its job alone
            log.debug("positions of pictures", exc_info=True)
            raise EngineError("invalid_request", "the grids of the pictures do not fit their tokens") from failure
        return SequencePictures(job, is_soft, positions, two_way=self._two_way)

    def update(self, running: Iterable[PictureUser]) -> list[tuple[PictureUser, Fault]]:
        """Gives sequences the features that are there, and fetches those that they need next.

        The first sequence with pictures to come gets those of its next pass whatever their size, so that it continues
        and at last makes room; those of all others must fit. Returns the sequences that cannot get a picture, with the
        faults that end them.
        """
        self._clear_wake()
        self._collect_result()
        failed: list[tuple[PictureUser, Fault]] = []
        wanted: dict[FeatureKey, None] = {}
        users = [(user, user.pictures) for user in running if user.pictures is not None]
        unfinished = [user for user, pictures in users if self._list_urgent(user, pictures)]
        first = min(unfinished, key=lambda user: user.queue_rank, default=None)
        for user, pictures in users:
            fault = self._serve(user, pictures, wanted, is_first=user is first)
            if fault is not None:
                failed.append((user, fault))
        self._faults.clear()
        self._job_faults.clear()
        self._run_encoder(wanted)
        return failed

    def release(self, user: PictureUser) -> None:
        """Takes the features of a sequence that no longer runs."""
        pictures = user.pictures
        if pictures is not None:
            for index, features in enumerate(pictures.features):
                if features is not None:
                    self._give_back(pictures, index)

    def take_requests(self) -> list[tuple[str, bytes]]:
        """Returns the pictures to ask the parent for since the last call, each with the id of its job."""
        requests, self._requests = self._requests, []
        return requests

    def provide(self, job_id: str, key: bytes, media: MediaArrays) -> None:
        """Takes the arrays of a picture that was asked for."""
        try:
            arrays = map_arrays(media)
        except (InvalidArrays, OSError) as error:
            log.warning("the arrays of a picture are invalid: %s", error)
            self._drop(job_id, key, ENCODING_FAILED)
            return
        self.provide_tensors(job_id, key, arrays)

    def provide_tensors(self, job_id: str, key: bytes, arrays: dict[str, Tensor]) -> None:
        """Takes the arrays of a picture that was asked for, as tensors."""
        for feature_key in self._forget(job_id, key):
            self._tasks[feature_key] = self._tasks[feature_key]._replace(arrays=arrays)

    def refuse(self, job_id: str, key: bytes, message: str) -> None:
        """Ends a job whose picture the parent does not have."""
        self._drop(job_id, key, Fault("media_unavailable", message, retryable=True))

    def _drop(self, job_id: str, key: bytes, fault: Fault) -> None:
        """Ends a job that asked for a picture. Another job that waits for it asks itself."""
        for feature_key in self._forget(job_id, key):
            del self._tasks[feature_key]
        self._job_faults[job_id, key] = fault

    def _forget(self, job_id: str, key: bytes) -> list[FeatureKey]:
        found = [each for each, asker in self._asked.items() if asker == job_id and each[2] == key]
        for each in found:
            del self._asked[each]
        return found

    def _list_urgent(self, user: PictureUser, pictures: SequencePictures) -> range:
        return pictures.list_urgent(user.num_computed_tokens, self._alignment)

    def _serve(
        self, user: PictureUser, pictures: SequencePictures, wanted: dict[FeatureKey, None], *, is_first: bool
    ) -> Fault | None:
        start, num_awaited = user.num_computed_tokens, 0
        for index in pictures.list_done(start):
            self._give_back(pictures, index)
        for number, index in enumerate(pictures.list_missing(start)):
            is_urgent = index in self._list_urgent(user, pictures)
            if num_awaited == LOOKAHEAD or (number >= LOOKAHEAD and not is_urgent):
                return None  # urgent ones behind those that are there are fetched now: nothing else would begin it
            span = pictures.spans[index]
            key = (user.job.owner, user.job.cache_salt, span.key)
            fault = self._job_faults.get((user.job.id, span.key)) or self._faults.get(key)
            if fault is not None:
                return fault
            features = self.cache.take(key)
            if features is not None:
                pictures.features[index] = features
                self.num_hits += key not in self._fresh
                self._fresh.discard(key)
                continue
            is_known = key in self._tasks or key in self._asked or key in wanted
            if not is_known and not (is_urgent or self._row_bytes):
                return None  # the size of features is not known yet
            has_room = (is_urgent and is_first) or self.cache.has_room(span.rows * self._row_bytes)
            if not is_known and not has_room:
                return None
            wanted[key] = None
            num_awaited += 1
            if not is_known:
                self._asked[key] = user.job.id
                self._tasks[key] = EncodingTask(key, {}, span.rows)
                self._requests.append((user.job.id, span.key))
        return None

    def _give_back(self, pictures: SequencePictures, index: int) -> None:
        pictures.features[index] = None
        job = pictures.job
        self.cache.give_back((job.owner, job.cache_salt, pictures.spans[index].key))

    def _run_encoder(self, wanted: dict[FeatureKey, None]) -> None:
        """Begins to encode the next picture whose arrays are there; drops those that no sequence needs any more."""
        for key in [key for key in self._tasks if key not in wanted and key not in self._asked]:
            del self._tasks[key]
        if self._thread is not None and self._thread.current is not None:
            if self._thread.current not in wanted:
                self._thread.cancel()
            return
        ready = next((task for key, task in self._tasks.items() if key in wanted and key not in self._asked), None)
        if ready is None:
            return
        if self._thread is None:
            self._keep_result(run_task(self._encoder, ready))
        else:
            self._thread.begin(ready)

    def _collect_result(self) -> None:
        result = None if self._thread is None else self._thread.take_result()
        if result is not None:
            self._keep_result(result)

    def _keep_result(self, result: EncodingResult) -> None:
        key = result.task.key
        if self._tasks.get(key) is result.task:  # else it was cancelled, and the picture is asked for again
            del self._tasks[key]
        if result.features is not None:
            self.num_encoded += 1
            self._row_bytes = result.features.num_bytes // len(result.features.pooled)
            self.cache.insert(key, result.features)
            self._fresh = {each for each in (*self._fresh, key) if each in self.cache}
        elif result.failure is not None:
            log.error("a picture could not be encoded", exc_info=result.failure)
            self._faults[key] = ENCODING_FAILED

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_write, b".")

    def _clear_wake(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, 64)
