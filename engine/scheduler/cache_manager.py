"""Whose tokens the cache holds: running sequences first, and in what is left, what ended ones leave behind.

It gives a sequence its cache, with as much of its prompt as is known already, and takes it back. ``room`` bounds what
is allocated for all together; it counts tokens, by capacity, not by use.
"""

from collections.abc import Sequence as Several
from typing import TYPE_CHECKING, NamedTuple

from antiphon.engine.cache.base import KVCache, round_capacity
from antiphon.engine.scheduler.prefix_cache import MIN_PREFIX_TOKENS, CachedPrefix, PrefixCache
from antiphon.engine.scheduler.sequence import Sequence, common_prefix_length

if TYPE_CHECKING:  # it needs torch
    from antiphon.engine.model.forward import ForwardPass

GROWTH_TOKENS = 128
"""A cache grows by this many tokens: each decoded token reads it whole, so that a copy for 128 of them is little."""

SPARE_FRACTION = 8
"""A text gets room for so large a part of it more: it may come back with another turn, and is not copied then."""

MIN_SHARED_TOKENS_TO_WAIT = 4 * MIN_PREFIX_TOKENS
"""Waiting for another sequence to compute a common beginning pays if it is longer than known by so many tokens."""


class PrefixHit(NamedTuple):
    """Where a beginning of ``length`` tokens can be read; ``entry``: it is idle and may be taken over."""

    cache: KVCache
    length: int
    entry: CachedPrefix | None


class KVCacheManager:
    """``room``: tokens of running and idle caches together. ``idle``: of idle ones alone.

    ``reuse`` False, or a model whose prompts cannot be fed in pieces: nothing is kept or shared.
    """

    def __init__(
        self, forward: "ForwardPass", *, max_tokens: int, max_idle_tokens: int, enable_prefix_caching: bool = True
    ) -> None:
        self.prefix_cache = PrefixCache()
        self._forward = forward
        self._max_tokens = max_tokens
        self._max_idle_tokens = max_idle_tokens
        self._enable_prefix_caching = enable_prefix_caching and forward.supports_chunked_prefill
        self._allocate_spare = self._enable_prefix_caching and not forward.is_paged
        """Whether caches get room that only a next turn needs; growing, paged ones are not copied."""

    def allocate(self, sequence: Sequence, running: Several[Sequence]) -> int:
        """Give one of those that run its cache; how many of its tokens are in there already."""
        free = self._max_tokens - sum(other.reserved_tokens for other in running if other is not sequence)
        capacity = self._choose_capacity(sequence, free)
        source = (
            None
            if sequence.needs_prompt_logprobs or not self._enable_prefix_caching
            else self._find_prefix(sequence, running)
        )
        if source is None:
            sequence.cache = self._forward.new_cache(capacity)
        else:
            sequence.cache = self._take_or_copy(source, capacity, free)
            sequence.num_computed_tokens = source.length
        self.evict_to_fit(running)
        return sequence.num_computed_tokens

    def free(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take its cache away, and keep it if it is sound."""
        state, fed = sequence.cache, sequence.num_computed_tokens
        sequence.cache, sequence.num_computed_tokens = None, 0
        if keep and self._enable_prefix_caching and isinstance(state, KVCache) and state.length == fed:
            self.prefix_cache.insert(sequence.cache_key, sequence.tokens[:fed], state)
            self.prefix_cache.evict_to(self._max_idle_tokens)

    def grow_caches(self, running: Several[Sequence]) -> None:
        """Reserve what each needs for the tokens it has; their sizes must fit together, or only one runs."""
        total = sum(sequence.reserved_tokens for sequence in running)
        for sequence in running:
            if isinstance(sequence.cache, KVCache) and sequence.cache.capacity < len(sequence.tokens):
                total -= sequence.reserved_tokens
                sequence.cache.reserve(self._choose_capacity(sequence, self._max_tokens - total))
                total += sequence.reserved_tokens
        self.evict_to_fit(running)

    def evict_to_fit(self, running: Several[Sequence]) -> None:
        """Let go of idle caches until all fits."""
        self.prefix_cache.evict_to(
            min(self._max_tokens - sum(sequence.reserved_tokens for sequence in running), self._max_idle_tokens)
        )

    def prefix_leader(self, sequence: Sequence, running: Several[Sequence]) -> tuple[Sequence, int] | None:
        """Who of those that run is about to compute much of what this one needs, and how many tokens of it."""
        if not self._enable_prefix_caching or sequence.needs_prompt_logprobs:
            return None
        most = len(sequence.tokens) - 1
        best, length = None, 0
        for other in running:
            if other.cache_key == sequence.cache_key and other.num_pending > 1:
                common = common_prefix_length(other.tokens, sequence.tokens, most)
                if common > max(length, other.num_computed_tokens):
                    best, length = other, common
        if best is None:
            return None
        source = self._find_prefix(sequence, running)
        known = source.length if source else 0
        return (best, length) if length > known + MIN_SHARED_TOKENS_TO_WAIT else None

    def _find_prefix(self, sequence: Sequence, running: Several[Sequence]) -> PrefixHit | None:
        most = len(sequence.tokens) - 1
        entry, length = self.prefix_cache.longest_match(sequence.cache_key, sequence.tokens, most)
        length = self._align_length(length)
        best = PrefixHit(entry.cache, length, entry) if entry and length else None
        for other in running:
            if other is sequence or other.cache_key != sequence.cache_key or not isinstance(other.cache, KVCache):
                continue
            common = self._align_length(
                common_prefix_length(other.tokens, sequence.tokens, min(most, other.num_computed_tokens))
            )
            if common >= MIN_PREFIX_TOKENS and (best is None or common > best.length):
                best = PrefixHit(other.cache, common, None)
        return best

    def _align_length(self, length: int) -> int:
        """As much of a beginning as can be gone on from: where a prompt may be cut."""
        return length - length % self._forward.prompt_alignment

    def _take_or_copy(self, source: PrefixHit, capacity: int, free: int) -> KVCache:
        """Take an idle cache over if little of it is lost, or if there is no memory for a copy; else copy."""
        kv, length, entry = source
        if entry is None:
            self.prefix_cache.evict_to(free - capacity)
            return kv.copy(length, capacity)
        if len(entry.tokens) - length > max(len(entry.tokens) // 10, MIN_PREFIX_TOKENS):
            self.prefix_cache.mark_used(entry)
            self.prefix_cache.evict_to(free - capacity, spared=entry)
            if self.prefix_cache.capacity_tokens <= free - capacity:
                return kv.copy(length, capacity)
        self.prefix_cache.pop(entry)
        kv.truncate(length)
        kv.reserve(capacity)
        return kv

    def _choose_capacity(self, sequence: Sequence, free: int) -> int:
        """What to allocate for its tokens and some more, at most what is free, and at least what its tokens need."""
        needed = len(sequence.tokens)
        slack = min(GROWTH_TOKENS, max(sequence.max_new_tokens - sequence.num_generated, 0))
        if self._allocate_spare:
            slack = max(slack, needed // SPARE_FRACTION)
        slack = min(slack, max(free - needed, 0) // 8)
        return max(min(round_capacity(needed + slack), free), needed if free >= needed else round_capacity(needed))
