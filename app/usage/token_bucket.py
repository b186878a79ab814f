"""A token bucket: how many units may be used now, when units come back at a constant rate."""

from msgspec import Struct


class TokenBucket(Struct):
    """Up to `limit` units a minute, of which all may be used at once. Times are in seconds of any steady clock.

    The level may fall below 0, since the size of a reply is known when it has ended; later requests wait for that, too.
    """

    level: float
    updated: float

    def refill(self, limit: float, now: float) -> None:
        """Adds the units that have come back until now. A lower limit than before also lowers the level.

        Every request refills its buckets; a call of `min` or `max` takes as long as the rest.
        """
        level, elapsed = self.level, now - self.updated
        if elapsed > 0:
            level += elapsed * limit / 60
        capacity = limit if limit > 1 else 1.0
        self.level = level if level < capacity else capacity  # noqa: FURB136
        self.updated = now

    def seconds_until(self, level: float, limit: float) -> float:
        """Returns the time until the bucket has this level, from its last refill."""
        missing = level - self.level
        return missing * 60 / limit if missing > 0 else 0.0
