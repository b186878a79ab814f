"""Pictures of a job: where they stand in its prompt, and the arrays from which the engine computes their features.

A prepared picture is known by its `key`. A job carries only spans; the engine asks its `MediaSource`
(`engine.protocol`) for the arrays of a picture when it has neither its features nor its keys and values in the cache.
"""

from typing import Literal

import msgspec

MEDIA_KEY_BYTES = 32
ARRAY_ALIGNMENT = 64
"""Offsets of arrays are multiples of this number of bytes."""

ImageForm = Literal["none", "expanded", "placeholder", "text"]
"""Forms of a picture in a prompt: none, as one token for each row of its features, as one token, or as text."""
ArrayType = Literal["float32", "uint8", "int64", "bool"]
ARRAY_ITEM_BYTES: dict[str, int] = {"float32": 4, "uint8": 1, "int64": 8, "bool": 1}


class MediaSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A picture in the prompt of a job. Spans are in the order of their offsets and do not overlap."""

    key: bytes
    """Identity of the prepared picture, `MEDIA_KEY_BYTES` long: its content, its processor and its prepared size."""
    offset: int
    """Index of its first soft token in `Job.tokens`."""
    length: int
    """Number of tokens from its first soft token to its last one; other tokens may stand between them."""
    rows: int
    """Number of rows of its features, and of soft tokens in the span. In prompts with placeholders or texts, the span
    is shorter, and 0 rows are an unknown number."""
    grid: tuple[int, ...] = ()
    """(time, height, width) in patches, the processor's `image_grid_thw`; empty if the model has no grid."""

    @property
    def end(self) -> int:
        """Index after its last soft token."""
        return self.offset + self.length


class MediaArray(msgspec.Struct, frozen=True, kw_only=True):
    """An array of a prepared picture: the argument `name` of the model's `get_image_features`, in C order."""

    name: str
    dtype: ArrayType
    shape: tuple[int, ...]
    offset: int
    """First byte in the file, a multiple of `ARRAY_ALIGNMENT`."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        count = 1
        for length in self.shape:
            count *= length
        return count * ARRAY_ITEM_BYTES[self.dtype]


class MediaArrays(msgspec.Struct, frozen=True, kw_only=True):
    """All arrays of a picture, in a file without a name of `size` bytes whose content can no longer change.

    On Linux it is a memfd with the seals shrink, grow and write. The receiver closes `descriptor`.
    """

    arrays: tuple[MediaArray, ...]
    size: int
    descriptor: int


class MediaUnavailable(Exception):  # noqa: N818  it is a state of the source, and no error of the picture
    """The source no longer has the picture. The message is one line that a client may read."""


def equal_length(ours: tuple[MediaSpan, ...], theirs: tuple[MediaSpan, ...], length: int) -> int:
    """Returns how much of a common prefix of `length` match tokens is really equal: up to the first other picture."""
    for index in range(max(len(ours), len(theirs))):
        first = ours[index] if index < len(ours) else None
        second = theirs[index] if index < len(theirs) else None
        offset = min(span.offset for span in (first, second) if span is not None)
        if offset >= length:
            return length
        if (
            first is None
            or second is None
            or (first.key, first.offset, first.length)
            != (
                second.key,
                second.offset,
                second.length,
            )
        ):
            return offset
    return length
