"""Limits of API keys: turns at the same time, requests and tokens a minute, tokens a day and a month.

A key may have limits of its own, and its owner limits of all its keys together; a request must pass both. Of several
servers over one database, each allows its share: the limit divided by the number of servers that are alive. Budgets of
a day and a month are compared with the sums of all servers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.app.base.api_keys import NO_LIMITS, ApiKey, KeyLimits
from antiphon.app.base.errors import ApiError
from antiphon.app.http.asgi import HeaderPairs
from antiphon.app.usage.limit_replies import (
    LimitLevel,
    list_anthropic_headers,
    list_openai_headers,
    quota_error,
    rate_limit_error,
)
from antiphon.app.usage.token_bucket import TokenBucket

CONCURRENCY_RETRY_S = 1.0
"""Time after which a client that has too many turns is told to try again; when one ends is not known."""
ONE_UNIT = 1 - 1e-6
"""Level at which a bucket has a unit. Times that a client waits are rounded, and so are sums of numbers."""
BudgetWindow = Literal["day", "month"]


class TurnPlace(Protocol):
    """A place that a turn holds from before its prompt is rendered until it has ended, such as a slot of its engine."""

    on_release: Callable[[], None] | None


class UsedTokens(Protocol):
    """Finds the tokens that an owner has used in the current day or month, or one of its keys."""

    def __call__(self, owner: str, key_id: str | None, window: BudgetWindow) -> int:
        """Returns them; `key_id` is None for all keys of the owner."""
        ...


class _LimitedScope(Struct):
    """A key or an owner with limits, and what counts against them now."""

    running: int = 0
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None


class _BoundScope(Struct):
    """A scope with the limits that its key has now."""

    scope: _LimitedScope
    limits: KeyLimits
    owner: str
    key_id: str | None


class RateLimits:
    """Checks and counts requests of keys. `clock` is steady; `wall_clock` returns seconds since 1970."""

    def __init__(
        self,
        used_tokens: UsedTokens = lambda *_: 0,
        *,
        count_servers: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._used_tokens, self._count_servers = used_tokens, count_servers
        self._clock, self._wall_clock = clock, wall_clock
        self._scopes: dict[tuple[str, bytes | str], _LimitedScope] = {}
        self._bound: dict[bytes | str, tuple[ApiKey, list[_BoundScope]]] = {}
        """Scopes of keys that have been used; a reload makes new keys."""

    def begin_request(self, key: ApiKey, *, is_anthropic: bool = False) -> HeaderPairs:
        """Counts a request, and returns the headers of its reply. Raises `ApiError` 429; then it does not count."""
        if key.limits is NO_LIMITS and key.owner_limits is NO_LIMITS:
            return ()
        scopes, now = self._find_scopes(key), self._clock()
        share = max(self._count_servers(), 1)
        self._refill(scopes, now, share)
        error = self._find_fault(scopes, share)
        if error is None:
            for bound in scopes:
                if bound.scope.requests is not None:
                    bound.scope.requests.level -= 1
        levels = _list_levels(scopes, share)
        headers = list_anthropic_headers(levels, self._wall_clock()) if is_anthropic else list_openai_headers(levels)
        if error is not None:
            error.headers = (*error.headers, *((name.decode(), value.decode()) for name, value in headers))
            raise error
        return headers

    def hold_turns(self, key: ApiKey, places: Sequence[TurnPlace]) -> None:
        """Counts turns of a request until their places are released. Raises `ApiError`; then none counts.

        Work that an owner has left to the server has no key: only its tokens count, since the server spreads it itself.
        """
        if key.limits is NO_LIMITS and key.owner_limits is NO_LIMITS:
            return
        scopes = self._find_scopes(key)
        if not key.digest:
            share = max(self._count_servers(), 1)
            self._refill(scopes, self._clock(), share)
            if (error := self._find_quota_fault(scopes) or _find_token_fault(scopes, share)) is not None:
                raise error
            return
        limited = [bound for bound in scopes if bound.limits.max_concurrent is not None]
        for bound in limited:
            self._check_room(bound, len(places))
        for place in places:
            for bound in limited:
                bound.scope.running += 1
            place.on_release = _make_release([bound.scope for bound in limited])

    def charge_tokens(self, key: ApiKey, num_tokens: int) -> None:
        """Counts tokens that a request of a key has used."""
        if num_tokens and not (key.limits is NO_LIMITS and key.owner_limits is NO_LIMITS):
            scopes, share = self._find_scopes(key), max(self._count_servers(), 1)
            self._refill(scopes, self._clock(), share)
            for bound in scopes:
                if bound.scope.tokens is not None:
                    bound.scope.tokens.level -= num_tokens

    def _find_scopes(self, key: ApiKey) -> list[_BoundScope]:
        """Returns the scopes of a key, with the limits that it has now."""
        name = key.digest or key.owner
        known = self._bound.get(name)
        if known is None or known[0] is not key:
            known = self._bound[name] = key, list(self._bind_scopes(key))
        return known[1]

    def _bind_scopes(self, key: ApiKey) -> Iterator[_BoundScope]:
        if key.limits is not NO_LIMITS:
            yield _BoundScope(self._find_scope(("key", key.digest)), key.limits, key.owner, key.id)
        if key.owner_limits is not NO_LIMITS:
            yield _BoundScope(self._find_scope(("owner", key.owner)), key.owner_limits, key.owner, None)

    def _find_scope(self, name: tuple[str, bytes | str]) -> _LimitedScope:
        scope = self._scopes.get(name)
        if scope is None:
            scope = self._scopes[name] = _LimitedScope()
        return scope

    def _refill(self, scopes: list[_BoundScope], now: float, share: int) -> None:
        """Brings the buckets to the time of now. A new one is full."""
        for bound in scopes:
            scope, limits = bound.scope, bound.limits
            scope.requests = _refill_bucket(scope.requests, limits.requests_per_minute, now, share)
            scope.tokens = _refill_bucket(scope.tokens, limits.tokens_per_minute, now, share)

    def _find_fault(self, scopes: list[_BoundScope], share: int) -> ApiError | None:
        """Returns the error of the first limit without room: of a budget, since waiting does not help there, first."""
        if (error := self._find_quota_fault(scopes)) is not None:
            return error
        for bound in scopes:
            if (error := self._find_room_fault(bound, 1)) is not None:
                return error
        for bound in scopes:
            bucket, limit = bound.scope.requests, bound.limits.requests_per_minute
            if bucket is not None and limit is not None and bucket.level < ONE_UNIT:
                return rate_limit_error(f"{limit} requests a minute", bucket.seconds_until(1, limit / share))
        return _find_token_fault(scopes, share)

    def _find_quota_fault(self, scopes: list[_BoundScope]) -> ApiError | None:
        for bound in scopes:
            for window, limit in (("month", bound.limits.tokens_per_month), ("day", bound.limits.tokens_per_day)):
                if limit is not None and self._used_tokens(bound.owner, bound.key_id, window) >= limit:  # type: ignore[arg-type]
                    return quota_error(limit, window, find_window_end(window, self._wall_clock()))
        return None

    def _find_room_fault(self, bound: _BoundScope, count: int) -> ApiError | None:
        limit = bound.limits.max_concurrent
        if limit is None:
            return None
        allowed, running = max(limit // max(self._count_servers(), 1), 1), bound.scope.running
        if running + count <= allowed:
            return None
        return rate_limit_error(f"{limit} responses at the same time, and {running} run", CONCURRENCY_RETRY_S)

    def _check_room(self, bound: _BoundScope, count: int) -> None:
        limit = bound.limits.max_concurrent
        if limit is not None and count > limit:
            message = f"The request asks for {count} responses; its API key may have {limit} at the same time."
            raise ApiError(400, "invalid_value", message, "n")
        error = self._find_room_fault(bound, count)
        if error is not None:
            raise error


def find_window_end(window: str, now: float) -> float:
    """Returns the end of the day or month in UTC that contains a time; both are in seconds since 1970."""
    start = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if window == "day":
        return start.timestamp() + 86_400
    year, month = start.year + start.month // 12, start.month % 12 + 1
    return start.replace(year=year, month=month, day=1).timestamp()


def find_window_start(window: str, now: float) -> float:
    """Returns the start of the day or month in UTC that contains a time; both are in seconds since 1970."""
    start = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (start if window == "day" else start.replace(day=1)).timestamp()


def _find_token_fault(scopes: list[_BoundScope], share: int) -> ApiError | None:
    for bound in scopes:
        bucket, limit = bound.scope.tokens, bound.limits.tokens_per_minute
        if bucket is not None and limit is not None and bucket.level < ONE_UNIT:
            return rate_limit_error(f"{limit} tokens a minute", bucket.seconds_until(1, limit / share))
    return None


def _refill_bucket(bucket: TokenBucket | None, limit: int | None, now: float, share: int) -> TokenBucket | None:
    if limit is None:
        return None
    if bucket is None:
        return TokenBucket(max(limit / share, 1.0), now)
    bucket.refill(limit / share, now)
    return bucket


def _list_levels(scopes: list[_BoundScope], share: int) -> list[LimitLevel]:
    """Returns the limit of requests and that of tokens with the least room, of those that there are."""
    found: dict[str, list[LimitLevel]] = {"requests": [], "tokens": []}
    for bound in scopes:
        for unit, bucket, limit in (
            ("requests", bound.scope.requests, bound.limits.requests_per_minute),
            ("tokens", bound.scope.tokens, bound.limits.tokens_per_minute),
        ):
            if bucket is not None and limit is not None:
                rate = limit / share
                reset_s = bucket.seconds_until(max(rate, 1.0), rate)
                found[unit].append(LimitLevel(unit, limit, max(int(bucket.level + 1 - ONE_UNIT), 0), reset_s))
    return [min(levels, key=lambda level: level.remaining) for levels in found.values() if levels]


def _make_release(scopes: list[_LimitedScope]) -> Callable[[], None]:
    def release() -> None:
        for scope in scopes:
            scope.running -= 1

    return release
