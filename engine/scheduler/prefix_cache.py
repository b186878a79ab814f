"""The KV caches of finished sequences, kept for sequences that begin with the same tokens.

This module knows no models and no schedules. It counts memory in tokens of allocated capacity. The owner of the memory
limits the pool by `PrefixCache.evict_to`, which evicts the least recently used entry first.
"""

from array import array

from antiphon.engine.cache.base import KVCache
from antiphon.engine.media_messages import MediaSpan, equal_length
from antiphon.engine.scheduler.sequence import common_prefix_length

MIN_PREFIX_TOKENS = 16
"""Tokens of the shortest prefix that is kept or looked up; a shorter one is not worth it."""

MAX_ENTRIES = 256
"""Maximum number of entries. Each is compared with every new prompt."""

MAX_CAPACITY_RATIO = 1.5
"""Ratio of capacity to tokens above which an entry is shrunk to its tokens."""

CacheKey = tuple[str, str, int]
"""Owner, cache salt, and number of the adapter (0: none). Nothing is shared between different keys."""


class CachedPrefix:
    """A cache without a sequence. `cache` has read exactly `tokens`, in which `spans` are pictures."""

    __slots__ = ("cache", "key", "spans", "tokens")

    def __init__(self, key: CacheKey, tokens: "array[int]", kv: KVCache, spans: tuple[MediaSpan, ...]) -> None:
        self.key = key
        self.tokens = tokens
        self.cache = kv
        self.spans = spans

    def common_length(self, tokens: "array[int]", limit: int, spans: tuple[MediaSpan, ...]) -> int:
        """Length of the common prefix with the match tokens of a sequence with these pictures, at most `limit`."""
        return equal_length(self.spans, spans, common_prefix_length(self.tokens, tokens, limit))


class PrefixCache:
    """A pool of entries in order of their last use. No entry is a prefix of another one with the same key."""

    def __init__(self) -> None:
        self.entries: list[CachedPrefix] = []

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def capacity_tokens(self) -> int:
        """Memory of all entries, in tokens."""
        return sum(entry.cache.memory_tokens for entry in self.entries)

    @property
    def num_tokens(self) -> int:
        """Number of tokens held by all entries."""
        return sum(len(entry.tokens) for entry in self.entries)

    def insert(self, key: CacheKey, tokens: "array[int]", kv: KVCache, spans: tuple[MediaSpan, ...] = ()) -> None:
        """Takes over the cache of a finished sequence. `tokens` are its first `kv.length` match tokens.

        Ignores a prefix that is too short or is a prefix of an existing entry; removes entries that are its prefixes.
        """
        if len(tokens) < MIN_PREFIX_TOKENS:
            return
        for other in [other for other in self.entries if other.key == key]:
            common = other.common_length(tokens, len(tokens), spans)
            if common == len(other.tokens):
                self.entries.remove(other)
            elif common == len(tokens):
                self.mark_used(other)
                return
        if kv.capacity > MAX_CAPACITY_RATIO * len(tokens) + MIN_PREFIX_TOKENS:
            kv.shrink(len(tokens))
        kv.park()
        self.entries.append(CachedPrefix(key, tokens, kv, spans))
        del self.entries[:-MAX_ENTRIES]

    def longest_match(
        self, key: CacheKey, tokens: "array[int]", max_length: int, spans: tuple[MediaSpan, ...] = ()
    ) -> tuple[CachedPrefix | None, int]:
        """The entry with the longest reusable common prefix with `tokens`, and its length; (None, 0) if none.

        `max_length` limits the length. Among entries with equal prefixes the shortest wins.
        """
        best: CachedPrefix | None = None
        length = MIN_PREFIX_TOKENS - 1
        for entry in self.entries:
            if entry.key != key:
                continue
            common = entry.cache.reusable_length(entry.common_length(tokens, max_length, spans))
            if common > length or (best and common == length and len(entry.tokens) < len(best.tokens)):
                best, length = entry, common
        return best, length if best else 0

    def common_length(
        self, key: CacheKey, tokens: "array[int]", max_length: int, spans: tuple[MediaSpan, ...] = ()
    ) -> int:
        """Length of the longest common prefix with an entry, reusable or not, at most `max_length`."""
        lengths = (entry.common_length(tokens, max_length, spans) for entry in self.entries if entry.key == key)
        return max(lengths, default=0)

    def mark_used(self, entry: CachedPrefix) -> None:
        """Makes the entry the most recently used one."""
        self.entries.remove(entry)
        self.entries.append(entry)

    def pop(self, entry: CachedPrefix) -> KVCache:
        """Removes the entry and returns its cache."""
        self.entries.remove(entry)
        entry.cache.unpark()
        return entry.cache

    def evict_to(self, max_capacity_tokens: int, spared: CachedPrefix | None = None) -> None:
        """Evicts entries, other than `spared`, until the pool holds at most `max_capacity_tokens` tokens of memory.

        The last entry is shortened instead, if a useful part remains: the beginning of a text is reused more often than
        its end. It is shortened by more than necessary, so that it is not copied again soon.
        """
        excess = self.capacity_tokens - max_capacity_tokens
        for entry in [entry for entry in self.entries if entry is not spared]:
            if excess <= 0:
                return
            length = (min(len(entry.tokens), entry.cache.capacity - excess) - MIN_PREFIX_TOKENS) * 3 // 4
            length = entry.cache.reusable_length(max(length, 0))
            if len(self.entries) == 1 and length >= 4 * MIN_PREFIX_TOKENS:
                entry.cache.shrink(length)
                del entry.tokens[length:]
                return
            excess -= entry.cache.memory_tokens
            self.entries.remove(entry)

    def remove_adapter(self, number: int) -> None:
        """Removes the entries of an adapter."""
        self.entries = [entry for entry in self.entries if entry.key[2] != number]
