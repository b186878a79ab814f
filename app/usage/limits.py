"""Limits of API keys: turns at the same time, requests and tokens a minute, tokens a day and a month.

A key may have limits of its own, and its owner limits of all its keys together; a request must pass both. Of several
servers over one database, each allows its share: the limit divided by the number of servers that take requests. Budgets
of a day and a month are compared with the sums of all servers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol

from antiphon.app.errors import ApiError
from antiphon.app.http.asgi import HeaderPairs
from antiphon.app.options.api_keys import NO_LIMITS, ApiKey
from antiphon.app.usage.limit_replies import (
    LIMIT_UNITS,
    LimitLevel,
    list_limit_headers,
    quota_error,
    rate_limit_error,
)
from antiphon.app.usage.limited_scope import ONE_UNIT, BoundScope, BudgetWindow, LimitedScope, bind_scope

CONCURRENCY_RETRY_S = 1.0
"""Time after which a client that has too many turns is told to try again; when one ends is not known."""


class TurnPlace(Protocol):
    """A place that a turn holds from before its prompt is rendered until it has ended, such as a slot of its engine."""

    on_release: Callable[[], None] | None


class UsedTokens(Protocol):
    """Finds the tokens that an owner has used in the current day or month, or one of its keys."""

    def __call__(self, owner: str, key_id: str | None, window: BudgetWindow) -> int:
        """Returns them; `key_id` is None for all keys of the owner."""
        ...


class RateLimits:
    """Checks and counts requests of keys.

    `count_servers` returns at least 1. `clock` is steady; `wall_clock` returns seconds since 1970.
    """

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
        self._scopes: dict[tuple[str, bytes | str], LimitedScope] = {}
        self._bound: dict[bytes | str, tuple[ApiKey, list[BoundScope]]] = {}
        """Scopes of keys that have been used; a reload makes new keys."""

    def begin_request(self, key: ApiKey, *, is_anthropic: bool = False) -> HeaderPairs:
        """Counts a request, and returns the headers of its reply. Raises `ApiError` 429; then it does not count."""
        if key.limits is NO_LIMITS and key.owner_limits is NO_LIMITS:
            return ()
        self.count_request(key, is_anthropic=is_anthropic)
        return self._list_headers(self._find_scopes(key), is_anthropic=is_anthropic)

    def count_request(self, key: ApiKey, *, is_anthropic: bool = False) -> None:
        """Counts a request whose reply has no headers. Raises `ApiError` 429, with headers; then it does not count."""
        if key.limits is NO_LIMITS and key.owner_limits is NO_LIMITS:
            return
        scopes, now, share = self._find_scopes(key), self._clock(), self._count_servers()
        fault, has_room = None, True
        for bound in scopes:
            has_room = bound.refill(now, share) and has_room
            if bound.budgets and fault is None:
                fault = self._find_quota_fault(bound)
        if fault is None and not has_room:
            fault = _find_room_fault(scopes)
        if fault is not None:
            headers = self._list_headers(scopes, is_anthropic=is_anthropic)
            fault.headers = (*fault.headers, *((name.decode(), value.decode()) for name, value in headers))
            raise fault
        for bound in scopes:
            if (requests := bound.scope.requests) is not None:
                requests.level -= 1

    def hold_turns(self, key: ApiKey, places: Sequence[TurnPlace]) -> None:
        """Counts turns of a request until their places are released. Raises `ApiError`; then none counts."""
        if key.limits is NO_LIMITS and key.owner_limits is NO_LIMITS:
            return
        scopes, share = self._find_scopes(key), self._count_servers()
        for bound in scopes:
            if bound.share != share:
                bound.divide(share)
            _check_places(bound, len(places))
        limited = [bound.scope for bound in scopes if bound.max_running is not None]
        release = _make_release(limited)
        for place in places:
            for scope in limited:
                scope.running += 1
            place.on_release = release

    def check_tokens(self, key: ApiKey) -> None:
        """Checks the limits of tokens alone, for work that the server spreads itself. Raises `ApiError` 429."""
        if key.limits is NO_LIMITS and key.owner_limits is NO_LIMITS:
            return
        scopes, now, share = self._find_scopes(key), self._clock(), self._count_servers()
        for bound in scopes:
            bound.refill(now, share)
            if (fault := self._find_quota_fault(bound)) is not None:
                raise fault
        if (fault := _find_token_fault(scopes)) is not None:
            raise fault

    def charge_tokens(self, key: ApiKey, num_tokens: int) -> None:
        """Counts tokens that a request of a key has used."""
        if num_tokens and not (key.limits is NO_LIMITS and key.owner_limits is NO_LIMITS):
            now, share = self._clock(), self._count_servers()
            for bound in self._find_scopes(key):
                bound.refill(now, share)
                if (tokens := bound.scope.tokens) is not None:
                    tokens.level -= num_tokens

    def _find_scopes(self, key: ApiKey) -> list[BoundScope]:
        """Returns the scopes of a key, with the limits that it has now."""
        name = key.digest or key.owner
        known = self._bound.get(name)
        if known is None or known[0] is not key:
            known = self._bound[name] = key, list(self._bind_scopes(key))
        return known[1]

    def _bind_scopes(self, key: ApiKey) -> Iterator[BoundScope]:
        if key.limits is not NO_LIMITS:
            yield bind_scope(self._find_scope(("key", key.digest)), key.limits, key.owner, key.id)
        if key.owner_limits is not NO_LIMITS:
            yield bind_scope(self._find_scope(("owner", key.owner)), key.owner_limits, key.owner, None)

    def _find_scope(self, name: tuple[str, bytes | str]) -> LimitedScope:
        scope = self._scopes.get(name)
        if scope is None:
            scope = self._scopes[name] = LimitedScope()
        return scope

    def _find_quota_fault(self, bound: BoundScope) -> ApiError | None:
        for window, limit in bound.budgets:
            if self._used_tokens(bound.owner, bound.key_id, window) >= limit:
                return quota_error(limit, window, find_window_end(window, self._wall_clock()))
        return None

    def _list_headers(self, scopes: list[BoundScope], *, is_anthropic: bool) -> HeaderPairs:
        return list_limit_headers(_list_levels(scopes), self._wall_clock(), is_anthropic=is_anthropic)


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


def _find_room_fault(scopes: list[BoundScope]) -> ApiError | None:
    """Returns the error of the first limit without room for one request, of all but the budgets."""
    for bound in scopes:
        if (fault := _find_place_fault(bound, 1)) is not None:
            return fault
    for bound in scopes:
        bucket, limit = bound.scope.requests, bound.limits.requests_per_minute
        if bucket is not None and bucket.level < ONE_UNIT:
            return rate_limit_error(f"{limit} requests a minute", bucket.seconds_until(1, bound.request_rate))
    return _find_token_fault(scopes)


def _find_token_fault(scopes: list[BoundScope]) -> ApiError | None:
    for bound in scopes:
        bucket, limit = bound.scope.tokens, bound.limits.tokens_per_minute
        if bucket is not None and bucket.level < ONE_UNIT:
            return rate_limit_error(f"{limit} tokens a minute", bucket.seconds_until(1, bound.token_rate))
    return None


def _find_place_fault(bound: BoundScope, count: int) -> ApiError | None:
    running = bound.scope.running
    if bound.max_running is None or running + count <= bound.max_running:
        return None
    limit = f"{bound.limits.max_concurrent} responses at the same time"
    if bound.share > 1:
        limit += f", of which this server, one of {bound.share}, allows {bound.max_running}"
    return rate_limit_error(f"{limit}, and {running} run", CONCURRENCY_RETRY_S)


def _check_places(bound: BoundScope, count: int) -> None:
    """Raises `ApiError` if a scope has no room for this number of turns."""
    limit = bound.limits.max_concurrent
    if limit is not None and count > limit:
        message = f"The request asks for {count} responses; its API key may have {limit} at the same time."
        raise ApiError(400, "invalid_value", message, "n")
    if (fault := _find_place_fault(bound, count)) is not None:
        raise fault


def _list_levels(scopes: list[BoundScope]) -> list[LimitLevel]:
    """Returns the limit of requests and that of tokens with the least room, of those that there are."""
    if len(scopes) == 1:
        return scopes[0].list_levels()
    least: dict[str, LimitLevel] = {}
    for bound in scopes:
        for level in bound.list_levels():
            known = least.get(level.unit)
            if known is None or level.remaining < known.remaining:
                least[level.unit] = level
    return [least[unit] for unit in LIMIT_UNITS if unit in least]


def _make_release(scopes: list[LimitedScope]) -> Callable[[], None]:
    def release() -> None:
        for scope in scopes:
            scope.running -= 1

    return release
