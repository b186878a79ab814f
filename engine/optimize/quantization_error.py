"""Measures how far a quantized model is from the same model in fp32, and refuses one that is too far."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from antiphon.engine.errors import LoadError
from antiphon.engine.fallbacks import report_fallback

log = logging.getLogger(__name__)

MIN_SIMILARITY = 0.8
"""Mean cosine similarity to the fp32 logits below which a quantized model is refused."""

REMEDIES = {
    "int8": "leave --quantization out",
    "int4": "use --quantization int8",
    "stored": "add --dtype float32, which takes 4 bytes for each weight",
}
"""Remedy for a form that changes a model too much."""

WARN_SIMILARITY = 0.95
"""Mean cosine similarity to the fp32 logits below which a quantized model is served with a warning."""


class QuantizationError(NamedTuple):
    """Difference between two tables of logits of the same text.

    `similarity` is the mean cosine similarity of their rows, `agreement` the fraction of rows with the same
    maximum.
    """

    similarity: float
    agreement: float

    def __str__(self) -> str:
        return f"cosine similarity to fp32 logits {self.similarity:.5f}, same most likely token {self.agreement:.0%}"


class ReferenceLogits(NamedTuple):
    """Logits in fp32 as they are kept while a model is packed: directions of rows in fp16, and their largest elements.

    `directions` (tokens, vocabulary) are the rows, each divided by its largest magnitude; `best` (tokens) are ids.
    """

    directions: Tensor
    best: Tensor

    @classmethod
    def keep(cls, logits: Tensor) -> "ReferenceLogits":
        """Returns what `compare_logits` needs of logits (tokens, vocabulary)."""
        magnitudes = logits.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        return cls((logits / magnitudes).half(), logits.argmax(-1))


def compare_logits(logits: Iterable[Tensor], expected: ReferenceLogits) -> QuantizationError:
    """Compares the logits (tokens, vocabulary) of a quantized model with those in fp32, row by row to save memory."""
    similarity, agreement, count = 0.0, 0, len(expected.best)
    for row, direction, best in zip(logits, *expected, strict=True):
        similarity += float(functional.cosine_similarity(row, direction.float(), dim=0))
        agreement += bool(row.argmax() == best)
    return QuantizationError(similarity / count, agreement / count)


def check_similarity(form: str, similarity: float, *, force: bool) -> None:
    """Warns, or raises `LoadError`, if a form changes the logits too much. `force` only warns."""
    figures = f"the cosine similarity of its {form} logits to fp32 logits is {similarity:.2f}"
    if not similarity >= MIN_SIMILARITY and not force:
        remedies = REMEDIES[form]
        raise LoadError(
            f"{form} changes this model too much: {figures}, and must be at least {MIN_SIMILARITY:.2f}; "
            f"{remedies}, or add --force-quantization"
        )
    if not similarity >= WARN_SIMILARITY:
        message = "%s changes this model: %s; its output may be noticeably worse"
        report_fallback(log, "quantization", message, form, figures)
