"""Errors and headers of limits, in the forms of OpenAI's and Anthropic's APIs."""

import math
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from antiphon.app.errors import NO_RETRY, RATE_LIMIT, ApiError
from antiphon.app.http.asgi import HeaderPairs

LimitUnit = Literal["requests", "tokens"]


class LimitLevel(Struct, frozen=True):
    """State of a limit: of `limit` units a minute, `remaining` may be used now, and all in `reset_s` seconds."""

    unit: LimitUnit
    limit: int
    remaining: int
    reset_s: float


LIMIT_UNITS: tuple[LimitUnit, ...] = ("requests", "tokens")
NUM_CACHED_TEXTS = 4096
"""Number of texts of one kind that are kept: limits and times repeat in the headers of most replies."""
_OPENAI_NAMES = {
    unit: tuple(f"x-ratelimit-{name}-{unit}".encode() for name in ("limit", "remaining", "reset"))
    for unit in LIMIT_UNITS
}
_ANTHROPIC_NAMES = {
    unit: tuple(f"anthropic-ratelimit-{unit}-{name}".encode() for name in ("limit", "remaining", "reset"))
    for unit in LIMIT_UNITS
}


def list_limit_headers(levels: list[LimitLevel], now: float, *, is_anthropic: bool) -> HeaderPairs:
    """Returns `x-ratelimit-*`, whose times are durations such as `1.5s` or `6m0s`, or `anthropic-ratelimit-*`.

    The times of the latter are in RFC 3339; `now` is in seconds since 1970.
    """
    names = _ANTHROPIC_NAMES if is_anthropic else _OPENAI_NAMES
    pairs: list[tuple[bytes, bytes]] = []
    for level in levels:
        reset_s = level.reset_s
        reset = _format_time(math.ceil(now + reset_s)) if is_anthropic else format_duration(reset_s)
        values = _format_limit(level.limit), b"%d" % level.remaining, reset.encode()
        pairs += zip(names[level.unit], values, strict=True)
    return tuple(pairs)


@lru_cache(NUM_CACHED_TEXTS)
def _format_limit(limit: int) -> bytes:
    return b"%d" % limit


def format_duration(seconds: float) -> str:
    """Returns a duration as OpenAI writes it: `0s`, `250ms`, `1.5s`, `6m0s`, `1h0m0s`.

    It is rounded up, so that a client which waits for it is not early.
    """
    if seconds < 60:
        return _format_millis(math.ceil(seconds * 1000 - 1e-6))
    return _format_minutes(math.ceil(seconds))


@lru_cache(NUM_CACHED_TEXTS)
def _format_millis(millis: int) -> str:
    return f"{millis}ms" if 0 < millis < 1000 else f"{millis / 1000:g}s"


@lru_cache(NUM_CACHED_TEXTS)
def _format_minutes(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"


@lru_cache(NUM_CACHED_TEXTS)
def _format_time(seconds: int) -> str:
    """Returns a time in seconds since 1970 in RFC 3339."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def rate_limit_error(cause: str, wait_s: float) -> ApiError:
    """Returns the error of a limit that has room again after a time. Codex reads the time in the message."""
    wait_s = max(wait_s, 0.001)
    message = f"Rate limit reached: {cause}. Please try again in {format_seconds(wait_s)}."
    headers = (("retry-after", str(math.ceil(wait_s))), ("retry-after-ms", str(math.ceil(wait_s * 1000))))
    return ApiError(429, "rate_limit_exceeded", message, kind=RATE_LIMIT, headers=headers)


def format_seconds(seconds: float) -> str:
    """Returns a time in seconds with at most three decimals, rounded up: `1.5s`."""
    return f"{math.ceil(seconds * 1000 - 1e-6) / 1000:g}s"


def quota_error(limit: int, window: str, ends_at: float) -> ApiError:
    """Returns the error of a budget that is used up. A retry does not help before `ends_at`, in seconds since 1970."""
    end = _format_time(int(ends_at))
    message = f"You exceeded your current quota: {limit} tokens a {window}. The next {window} begins at {end}."
    return ApiError(429, "insufficient_quota", message, kind="insufficient_quota", headers=NO_RETRY)
