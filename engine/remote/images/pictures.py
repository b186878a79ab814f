"""Pictures for engines on other servers: the files that are sent, their names there, and the picture of the handshake.

Only files that this server has made are sent: PNG without metadata. A server keeps what it computes for a picture under
the name that it is given, so the name depends on the owner, and no owner can find out what others have sent.
"""

import base64
import hashlib
import hmac
import struct
import zlib
from collections.abc import Sequence
from functools import cached_property

import msgspec

from antiphon.engine.media_checks import check_biases
from antiphon.engine.media_messages import MediaUnavailable
from antiphon.engine.protocol import EngineError, Job, MediaSource

PROBE_SIDE = 32
"""Width and height of the picture of a handshake."""
REPEATED_ID_TYPES = ("qwen", "glm4v", "glm46v", "glm_ocr", "llava", "internvl")
"""Beginnings of model types in which a picture is one id, repeated. SGLang decodes the prompts of others to text."""


class RemotePicture(msgspec.Struct, frozen=True, dict=True):
    """A picture as a server gets it. `identity` is its name there, in hexadecimal digits."""

    png: bytes
    identity: str

    @cached_property
    def base64_text(self) -> str:
        """The file in base64."""
        return base64.b64encode(self.png).decode("ascii")

    @property
    def data_url(self) -> str:
        """The file as a data URL."""
        return f"data:image/png;base64,{self.base64_text}"


class ImageProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with one picture, for the handshake."""

    tokens: tuple[int, ...] = ()
    """The prompt with one placeholder; empty if the model's template writes none."""
    offset: int = 0
    """Index of the placeholder."""
    texts: tuple[str, str] = ("", "")
    """The same prompt as texts before and behind the picture."""
    text_tokens: tuple[int, ...] = (0,)
    """Tokens of these texts."""


def check_soft_tokens(job: Job, soft_ids: Sequence[int]) -> None:
    """Raises `EngineError` if a token that stands for pictures is outside of the job's pictures, or is preferred."""
    soft = frozenset(soft_ids)
    check_biases(job, soft)
    if soft.isdisjoint(job.tokens):
        return
    inside = {index for span in job.media for index in range(span.offset, span.end)}
    if any(token in soft and index not in inside for index, token in enumerate(job.tokens)):
        raise EngineError("invalid_request", "the prompt has a token id that stands for a picture, video or audio")


def takes_repeated_ids(model_type: str) -> bool:
    """Tells whether a picture is one id, repeated, in models of this type."""
    return model_type.startswith(REPEATED_ID_TYPES)


async def load_pictures(source: MediaSource | None, job: Job, secret: bytes) -> tuple[RemotePicture, ...]:
    """Returns the pictures of a job, in order. Raises `EngineError`."""
    loaded: dict[bytes, RemotePicture] = {}
    for span in job.media:
        if span.key in loaded:
            continue
        if source is None:
            raise EngineError("media_unavailable", "this engine has no source of images", retryable=True)
        try:
            png = await source.load_png(job, span.key)
        except MediaUnavailable as error:
            raise EngineError("media_unavailable", str(error), retryable=True) from None
        loaded[span.key] = RemotePicture(png, name_picture(secret, job, span.key))
    return tuple(loaded[span.key] for span in job.media)


def name_picture(secret: bytes, job: Job, key: bytes) -> str:
    """Returns the name of a picture on all servers: alike for an owner's jobs of one salt, unlike for any others."""
    parts = (job.owner.encode(), job.cache_salt.encode(), key)
    message = b"".join(struct.pack(">Q", len(part)) + part for part in parts)
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def draw_probe_picture() -> RemotePicture:
    """Returns a picture of `PROBE_SIDE` pixels in grey."""
    row = b"\0" + b"\x80\x80\x80" * PROBE_SIDE
    header = struct.pack(">IIBBBBB", PROBE_SIDE, PROBE_SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(row * PROBE_SIDE)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return RemotePicture(png, hashlib.sha256(png).hexdigest())


def is_expansion(ours: Sequence[int], offset: int, theirs: Sequence[int]) -> bool:
    """Tells whether `theirs` is our prompt with further ids in the place of the placeholder at `offset`."""
    behind = ours[offset + 1 :]
    grown = len(theirs) - len(ours)
    return (
        grown >= 0
        and tuple(theirs[:offset]) == tuple(ours[:offset])
        and tuple(theirs[len(theirs) - len(behind) :]) == tuple(behind)
    )
