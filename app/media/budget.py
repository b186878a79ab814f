"""Limits on the size of a request's pictures and on the tokens that each takes for the model."""

from msgspec import Struct

from antiphon.app.sandbox.media.messages import MEDIA_CPU_LIMIT_S, ImageLimits, TokenBudget

LOW_TOKENS = 256
LOW_SIDE = 512
ORIGINAL_PIXELS = 10_000 * 32 * 32
"""Pixels that `original` keeps: ten thousand patches of 32 pixels a side."""


class MediaLimits(Struct, frozen=True, kw_only=True):
    """Limits on pictures and PDFs."""

    max_image_bytes: int = 20 << 20
    image: ImageLimits = ImageLimits()
    image_tokens: int = 1024
    """Tokens of a picture whose request names no `detail`."""
    max_image_tokens: int = 4096
    """Tokens of a picture with `detail` "original"."""
    memory_bytes: int = 256 << 20
    """Prepared pictures that are kept."""
    num_workers: int = 1
    max_pdf_bytes: int = 32 << 20
    max_pdf_pages: int = 100
    cpu_limit_s: float = MEDIA_CPU_LIMIT_S
    """CPU time for a picture, or for a few pages of a PDF."""


def find_budget(detail: str | None, limits: MediaLimits) -> TokenBudget:
    """Returns how many tokens a picture may take, by the `detail` of its part. Unknown values count as "auto"."""
    if detail == "low":
        return TokenBudget(min(LOW_TOKENS, limits.max_image_tokens), max_side=LOW_SIDE)
    if detail == "high":
        return TokenBudget(min(2 * limits.image_tokens, limits.max_image_tokens))
    if detail == "original":
        return TokenBudget(limits.max_image_tokens, max_pixels=ORIGINAL_PIXELS)
    return TokenBudget(limits.image_tokens)
