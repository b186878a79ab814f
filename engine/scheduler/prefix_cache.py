"""The caches of sequences that have ended, kept for those that begin with the same tokens.

It knows no models and no schedules, and counts memory in tokens, by what is allocated. Whoever owns the memory says
how much the pool may hold (:meth:`Prefixes.fit`); the least recently used entry goes first.
"""

from array import array

from antiphon.engine.cache.base import KVCache
from antiphon.engine.scheduler.sequence import common_prefix_length

MIN_PREFIX_TOKENS = 16
"""A prefix of fewer tokens is not worth keeping or looking for."""

MAX_ENTRIES = 256
"""Entries at most: each is compared with every new prompt."""

MAX_CAPACITY_RATIO = 1.5
"""An entry that holds more than so many times the memory of its tokens gives the rest back."""

CacheKey = tuple[str, str]
"""Owner and salt: nothing is shared between different keys."""


class CachedPrefix:
    """A cache without a sequence; ``tokens`` are exactly those whose keys and values ``kv`` holds."""

    __slots__ = ("key", "cache", "tokens")

    def __init__(self, key: CacheKey, tokens: "array[int]", kv: KVCache) -> None:
        self.key = key
        self.tokens = tokens
        self.cache = kv


class PrefixCache:
    """The pool: entries in the order of their last use, none a prefix of another one of the same key."""

    def __init__(self) -> None:
        self._entries: list[CachedPrefix] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def capacity_tokens(self) -> int:
        """Memory in tokens."""
        return sum(entry.cache.capacity for entry in self._entries)

    @property
    def num_tokens(self) -> int:
        """Tokens that could be read."""
        return sum(len(entry.tokens) for entry in self._entries)

    def insert(self, key: CacheKey, tokens: "array[int]", kv: KVCache) -> None:
        """Take over the cache of a sequence that ended. ``tokens`` are the first ``kv.length`` of the sequence."""
        if len(tokens) < MIN_PREFIX_TOKENS:
            return
        for other in [other for other in self._entries if other.key == key]:
            common = common_prefix_length(tokens, other.tokens, len(tokens))
            if common == len(other.tokens):
                self._entries.remove(other)
            elif common == len(tokens):
                self.mark_used(other)
                return
        if kv.capacity > MAX_CAPACITY_RATIO * len(tokens) + MIN_PREFIX_TOKENS:
            kv.shrink(len(tokens))
        self._entries.append(CachedPrefix(key, tokens, kv))
        del self._entries[:-MAX_ENTRIES]

    def longest_match(self, key: CacheKey, tokens: "array[int]", most: int) -> tuple[CachedPrefix | None, int]:
        """The entry that shares the longest beginning with ``tokens``, and its length; among equals the shortest."""
        best: CachedPrefix | None = None
        length = MIN_PREFIX_TOKENS - 1
        for entry in self._entries:
            if entry.key != key:
                continue
            common = common_prefix_length(entry.tokens, tokens, most)
            if common > length or (best and common == length and len(entry.tokens) < len(best.tokens)):
                best, length = entry, common
        return best, length if best else 0

    def mark_used(self, entry: CachedPrefix) -> None:
        """It was used just now."""
        self._entries.remove(entry)
        self._entries.append(entry)

    def pop(self, entry: CachedPrefix) -> KVCache:
        """Its cache, which the pool gives up."""
        self._entries.remove(entry)
        return entry.cache

    def evict_to(self, room: int, spared: CachedPrefix | None = None) -> None:
        """Hold at most ``room`` tokens of memory, as far as that goes without the entry that is spared.

        The last entry is not dropped but cut, as long as a useful part of it is left: a beginning is read more often
        than an end. It is cut deeper than asked for, so that it need not be copied again soon.
        """
        over = self.capacity_tokens - room
        for entry in [entry for entry in self._entries if entry is not spared]:
            if over <= 0:
                return
            length = (min(len(entry.tokens), entry.cache.capacity - over) - MIN_PREFIX_TOKENS) * 3 // 4
            if len(self._entries) == 1 and length >= 4 * MIN_PREFIX_TOKENS:
                entry.cache.shrink(length)
                del entry.tokens[length:]
                return
            over -= entry.cache.capacity
            self._entries.remove(entry)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
