"""Limits on the number of objects of one owner."""

from antiphon.app.errors import NO_RETRY, RATE_LIMIT, ApiError


def check_counts(counts: tuple[int, int], max_open: int, max_kept: int, kind: str, remedy: str) -> None:
    """Raises `ApiError` 429 if an owner had as many objects as it may: that have not ended, or that are kept.

    A retry does not help before one has ended, so clients are told not to try again. `kind`: their name, such as
    "uploads". `remedy`: the request that ends one.
    """
    if counts[0] >= max_open:
        message = f"{max_open} {kind} of this API key have not ended, which is the most. Wait, or end one: {remedy}."
    elif counts[1] >= max_kept:
        message = f"{max_kept} {kind} of this API key are kept, which is the most. Try again when one is forgotten."
    else:
        return
    raise ApiError(429, "rate_limit_exceeded", message, kind=RATE_LIMIT, headers=NO_RETRY)
