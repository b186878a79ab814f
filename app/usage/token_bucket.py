"""A token bucket: how many units may be used now, when units come back at a constant rate."""

from msgspec import Struct


class TokenBucket(Struct):
    """Up to `limit` units a minute, of which all may be used at once. Times are in seconds of any steady clock.

    The level may fall below 0, since the size of a reply is known when it has ended; later requests wait for that, too.
    """

    level: float
    updated: float

    def refill(self, limit: float, now: float) -> None:
        """Adds the units that have come back until now. A lower limit than before also lowers the level."""
        capacity = max(limit, 1.0)
        self.level = min(capacity, self.level + max(now - self.updated, 0.0) * limit / 60)
        self.updated = now

    def seconds_until(self, level: float, limit: float) -> float:
        """Returns the time until the bucket has this level, from its last refill."""
        return max(level - self.level, 0.0) * 60 / limit
