"""Inputs of an encoder and the treatment of its results: parts of a job. Needs no torch."""

import msgspec


class EncoderInput(msgspec.Struct, frozen=True, array_like=True):
    """Token ids of a text, or of a pair of texts, that the model reads in one piece."""

    tokens: tuple[int, ...]
    first_part: int | None = None
    """Number of tokens before those that the tokenizer marks as the second text of a pair. None: all."""


class VectorOptions(msgspec.Struct, frozen=True, array_like=True):
    """How the vectors of a job are finished. Scores have no options."""

    dimensions: int | None = None
    """Numbers to keep of each vector. None: all."""
    normalize: bool | None = None
    """Scales each vector to length 1. None: as the model's repository says, and if `dimensions` cuts the vector."""
