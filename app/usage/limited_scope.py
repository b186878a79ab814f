"""The state of the limits of a key, or of all keys of an owner, and the limits that are in force now."""

from typing import Literal

from msgspec import Struct

from antiphon.app.options.api_keys import KeyLimits
from antiphon.app.usage.limit_replies import LimitLevel, LimitUnit
from antiphon.app.usage.token_bucket import TokenBucket

ONE_UNIT = 1 - 1e-6
"""Level at which a bucket has a unit. Times that a client waits are rounded, and so are sums of numbers."""


BudgetWindow = Literal["day", "month"]


class LimitedScope(Struct):
    """A key or an owner with limits, and what counts against them now. A bucket is None without such a limit."""

    running: int = 0
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None


def bind_scope(scope: LimitedScope, limits: KeyLimits, owner: str, key_id: str | None) -> "BoundScope":
    """Returns a scope with the limits that its key has now; `key_id` is None for all keys of the owner."""
    windows: tuple[tuple[BudgetWindow, int | None], ...] = (
        ("month", limits.tokens_per_month),
        ("day", limits.tokens_per_day),
    )
    budgets = tuple((window, limit) for window, limit in windows if limit is not None)
    return BoundScope(scope, limits, owner, key_id, budgets)


class BoundScope(Struct):
    """A scope with the limits that its key has now, and this server's share of them."""

    scope: LimitedScope
    limits: KeyLimits
    owner: str
    key_id: str | None
    """None for all keys of the owner."""
    budgets: tuple[tuple[BudgetWindow, int], ...]
    """Tokens of a window, the longest first."""
    share: int = 0
    """Number of servers that the limits are divided by; 0 before the first use."""
    request_rate: float = 0.0
    """Requests a minute that this server allows; 0 if they are unlimited."""
    token_rate: float = 0.0
    max_running: int | None = None
    """Turns that this server allows at the same time. None: unlimited."""

    def refill(self, now: float, share: int) -> bool:
        """Brings the buckets to the time of now; a new one is full. Tells whether a request has room beside budgets.

        Every request comes through here, so this is written for speed: no call without a limit, and no loop.
        """
        if share != self.share:
            self.divide(share)
        scope = self.scope
        has_room = self.max_running is None or scope.running < self.max_running
        if self.request_rate:
            requests = scope.requests
            if requests is None:
                scope.requests = TokenBucket(max(self.request_rate, 1.0), now)
            else:
                requests.refill(self.request_rate, now)
                has_room = has_room and requests.level >= ONE_UNIT
        if self.token_rate:
            tokens = scope.tokens
            if tokens is None:
                scope.tokens = TokenBucket(max(self.token_rate, 1.0), now)
            else:
                tokens.refill(self.token_rate, now)
                has_room = has_room and tokens.level >= ONE_UNIT
        return has_room

    def list_levels(self) -> list[LimitLevel]:
        """Returns the state of the limits of requests and of tokens, of those that there are."""
        limits, scope, levels = self.limits, self.scope, list[LimitLevel]()
        if limits.requests_per_minute is not None and scope.requests is not None:
            levels.append(_measure("requests", limits.requests_per_minute, scope.requests, self.request_rate))
        if limits.tokens_per_minute is not None and scope.tokens is not None:
            levels.append(_measure("tokens", limits.tokens_per_minute, scope.tokens, self.token_rate))
        return levels

    def divide(self, share: int) -> None:
        """Sets the limits of this server to its share, where there are `share` servers."""
        limits, self.share = self.limits, share
        self.request_rate = (limits.requests_per_minute or 0) / share
        self.token_rate = (limits.tokens_per_minute or 0) / share
        self.max_running = None if limits.max_concurrent is None else max(limits.max_concurrent // share, 1)
        if not self.request_rate:
            self.scope.requests = None
        if not self.token_rate:
            self.scope.tokens = None


def _measure(unit: LimitUnit, limit: int, bucket: TokenBucket, rate: float) -> LimitLevel:
    level = bucket.level
    missing = (rate if rate > 1 else 1.0) - level
    remaining = int(level + 1 - ONE_UNIT) if level > 0 else 0
    return LimitLevel(unit, limit, remaining, missing * 60 / rate if missing > 0 else 0.0)
