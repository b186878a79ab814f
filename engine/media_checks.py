"""Checks of the pictures of a job, and of the arrays that a source gives for one. They need no model."""

import fcntl
import os
import stat
import sys
from collections.abc import Collection

from antiphon.engine.media_messages import ARRAY_ALIGNMENT, MEDIA_KEY_BYTES, MediaArrays
from antiphon.engine.protocol import EngineError, EngineInfo, Job

MAX_ARRAYS = 16
MAX_DIMENSIONS = 8


class InvalidArrays(Exception):  # noqa: N818  a state of the file
    """The arrays of a picture are not what they must be. The message is one line for the log."""


def check_media(job: Job, info: EngineInfo) -> None:
    """Raises `EngineError` if soft tokens and spans of the job do not belong together."""
    if not job.media:
        if info.soft_ids and not set(info.soft_ids).isdisjoint(job.tokens):
            raise EngineError("invalid_request", "the prompt has a token id that stands for a picture, video or audio")
    elif info.image_form == "none":
        raise EngineError("invalid_request", info.image_refusal or "the model takes no pictures")
    else:
        _check_spans(job, info)
    check_biases(job, info.soft_ids)


def check_biases(job: Job, soft_ids: Collection[int]) -> None:
    """Raises `EngineError` if a job prefers a token that stands for a picture. A ban of one is no fault."""
    for token, bias in job.sampling.logit_bias.items():
        if bias > 0 and token in soft_ids:
            raise EngineError("invalid_request", f"logit_bias: token id {token} stands for a picture, video or audio")


def _check_spans(job: Job, info: EngineInfo) -> None:
    """Raises `EngineError` unless the spans follow each other and hold all soft tokens."""
    soft, last_end, num_soft = set(info.soft_ids), 0, 0
    for span in job.media:
        if (
            len(span.key) != MEDIA_KEY_BYTES
            or not last_end <= span.offset < span.end <= len(job.tokens)
            or span.rows < 1
        ):
            raise EngineError("invalid_request", "the spans of the pictures are not in order inside of the prompt")
        last_end = span.end
        if soft and info.image_form == "expanded":
            rows = sum(token in soft for token in job.tokens[span.offset : span.end])
            if rows != span.rows:
                raise EngineError("invalid_request", f"a picture of {span.rows} tokens has {rows} in the prompt")
            num_soft += rows
    if num_soft and sum(token in soft for token in job.tokens) != num_soft:
        raise EngineError("invalid_request", "the prompt has a token of a picture outside of its pictures")


def check_arrays(media: MediaArrays) -> None:
    """Raises `InvalidArrays` unless the file has the declared size, cannot change, and holds each array whole."""
    if not 0 < len(media.arrays) <= MAX_ARRAYS:
        raise InvalidArrays(f"{len(media.arrays)} arrays")
    end = 0
    for array in media.arrays:
        if len(array.shape) > MAX_DIMENSIONS or any(length < 1 for length in array.shape):
            raise InvalidArrays(f"array {array.name!r} has the shape {array.shape}")
        if array.offset < 0 or array.offset % ARRAY_ALIGNMENT:
            raise InvalidArrays(f"array {array.name!r} begins at byte {array.offset}")
        end = max(end, array.offset + array.size)
    if end > media.size:
        raise InvalidArrays(f"the arrays need {end} bytes, the file has {media.size}")
    _check_file(media.descriptor, media.size)


def _check_file(descriptor: int, size: int) -> None:
    try:
        status = os.fstat(descriptor)
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) if sys.platform == "linux" else None
    except OSError as error:
        raise InvalidArrays(f"the file cannot be used: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        raise InvalidArrays(f"the file has {status.st_size} bytes instead of {size}")
    if seals is not None:
        needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        if seals & needed != needed:
            raise InvalidArrays("the file could still change")
