"""Allocation of the KV caches of running sequences, and reuse of the prefixes that other sequences have computed.

A new sequence gets a cache that already holds the longest reusable prefix of its prompt. The cache of a finished
sequence stays in the `PrefixCache` while memory allows. Memory is counted in tokens of capacity, not of use.
"""

from collections.abc import Sequence as SequenceABC
from typing import TYPE_CHECKING, NamedTuple

from antiphon.engine.cache.base import KVCache, round_capacity
from antiphon.engine.media_messages import equal_length
from antiphon.engine.scheduler.disk_prefixes import DiskPrefixes
from antiphon.engine.scheduler.prefix_cache import MIN_PREFIX_TOKENS, CachedPrefix, PrefixCache
from antiphon.engine.scheduler.sequence import Sequence, common_prefix_length

if TYPE_CHECKING:  # importing it imports torch
    from antiphon.engine.forward.interface import ForwardPass
    from antiphon.engine.prefix_disk.prefix_disk import PrefixDisk

GROWTH_TOKENS = 128
"""Tokens by which a cache grows. Each decoded token reads the whole cache, so one copy per 128 tokens costs little."""

SPARE_FRACTION = 8
"""Divisor of the length: a cache gets 1/8 of it as extra capacity, so that the next turn extends the cache in place."""

MIN_SHARED_TOKENS_TO_WAIT = 4 * MIN_PREFIX_TOKENS
"""A sequence waits for another sequence's prefix only if that saves more than this many tokens."""


class PrefixHit(NamedTuple):
    """A cache whose first `length` tokens can be reused.

    `entry` is its entry in the prefix cache, which may be taken over; None for the cache of a running sequence.
    """

    cache: KVCache
    length: int
    entry: CachedPrefix | None


class KVCacheManager:
    """Gives sequences their caches and takes them back.

    `max_tokens` limits the capacity of running and idle caches together, `max_idle_tokens` that of idle ones alone.
    No cache is kept or shared if `enable_prefix_caching` is False or the model does not support chunked prefill.
    `prefix_disk` keeps the pages of ended sequences for later starts.
    """

    def __init__(
        self,
        forward: "ForwardPass",
        *,
        max_tokens: int,
        max_idle_tokens: int,
        enable_prefix_caching: bool = True,
        prefix_disk: "PrefixDisk | None" = None,
    ) -> None:
        self.prefix_cache = PrefixCache()
        self.disk = DiskPrefixes(prefix_disk)
        self._forward = forward
        self.max_tokens = max_tokens
        self._max_idle_tokens = max_idle_tokens
        self.enable_prefix_caching = enable_prefix_caching and forward.supports_chunked_prefill
        self._allocate_spare = self.enable_prefix_caching and not forward.is_paged
        """True if caches get extra capacity for the next turn. Paged caches need none: they grow without a copy."""

    def allocate(self, sequence: Sequence, running: SequenceABC[Sequence]) -> int:
        """Gives a running sequence its cache. Returns the number of tokens that the cache holds already."""
        free = self.max_tokens - sum(other.reserved_tokens for other in running if other is not sequence)
        free -= self._forward.state_tokens
        capacity = self._choose_capacity(sequence, free)
        snapshot_lengths = self._choose_snapshots(sequence)
        source = (
            None
            if sequence.needs_prompt_logprobs or not self.enable_prefix_caching
            else self._find_prefix(sequence, running)
        )
        if source is None:
            sequence.cache = self._forward.new_cache(capacity)
        else:
            sequence.cache = self._take_or_copy(source, capacity, free)
            sequence.num_computed_tokens = source.length
        if self._forward.state_tokens and self.enable_prefix_caching:
            sequence.cache.plan_snapshots(snapshot_lengths)
        self.evict_to_fit(running)
        return sequence.num_computed_tokens

    def free(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Takes the cache of a sequence. Keeps it for reuse if `keep` is set and it holds all computed tokens."""
        cache, length = sequence.cache, sequence.num_computed_tokens
        sequence.cache, sequence.num_computed_tokens = None, 0
        if keep and self.enable_prefix_caching and isinstance(cache, KVCache) and cache.length == length:
            self.disk.offer(sequence, cache, length)
            self.prefix_cache.insert(sequence.cache_key, sequence.match_tokens[:length], cache, sequence.spans)
            self.prefix_cache.evict_to(self._max_idle_tokens)

    def grow_caches(self, running: SequenceABC[Sequence]) -> None:
        """Reserves capacity for the tokens that each running sequence has.

        Together the sequences must fit into the cache; a sequence that runs alone may exceed it.
        """
        total = sum(sequence.reserved_tokens for sequence in running)
        for sequence in running:
            if isinstance(sequence.cache, KVCache) and sequence.cache.capacity < len(sequence.tokens):
                total -= sequence.reserved_tokens
                sequence.cache.reserve(self._choose_capacity(sequence, self.max_tokens - total))
                total += sequence.reserved_tokens
        self.evict_to_fit(running)

    def evict_to_fit(self, running: SequenceABC[Sequence]) -> None:
        """Evicts idle caches until they fit next to those of the running sequences."""
        free = self._count_free(running) - self.disk.num_loading_tokens
        self.prefix_cache.evict_to(min(free, self._max_idle_tokens))

    def take_loaded(self, running: SequenceABC[Sequence]) -> None:
        """Makes a prefix that has been read from disk an idle cache, where the sequence that waits for it finds it."""
        loaded = self.disk.take_loaded()
        if loaded is not None:
            sequence, cache = loaded
            self.prefix_cache.insert(sequence.cache_key, sequence.tokens[: cache.length], cache)
            self.evict_to_fit(running)

    def find_leader(self, sequence: Sequence, running: SequenceABC[Sequence]) -> tuple[Sequence, int] | None:
        """Returns what `prefix_leader` returns. If that is None, the sequence may begin to wait for pages on disk."""
        leader = self.prefix_leader(sequence, running)
        if leader is None and self.enable_prefix_caching and self.disk.may_help(sequence):
            free = self._count_free(running)
            capacity = self._choose_capacity(sequence, free)
            source = self._find_prefix(sequence, running) if capacity <= free else None
            pages = self.disk.find(sequence, source.length if source else 0) if capacity <= free else []
            if pages:
                self.disk.start_load(sequence, pages, capacity)
                self.evict_to_fit(running)
        return leader

    def prefix_leader(self, sequence: Sequence, running: SequenceABC[Sequence]) -> tuple[Sequence, int] | None:
        """The running sequence whose prefix to wait for, and the length of that prefix; None if there is none.

        Example: sequences A and B begin with the same 2000 tokens, and A, in prefill, has computed 512 of them. B waits
        until A has computed 2000 and then reuses these. Had A computed 1950, B would save only 50 tokens by waiting,
        fewer than `MIN_SHARED_TOKENS_TO_WAIT`, and would start with the 1950 at once.
        """
        if not self.enable_prefix_caching or sequence.needs_prompt_logprobs:
            return None
        max_length = len(sequence.tokens) - 1
        leader, length = None, 0
        for other in running:
            if other.cache_key == sequence.cache_key and other.num_pending > 1:
                common = _common_length(other, sequence, max_length)
                if common > max(length, other.num_computed_tokens):
                    leader, length = other, common
        if leader is None:
            return None
        source = self._find_prefix(sequence, running)
        num_cached = source.length if source else 0
        if self._forward.state_tokens:
            length = self._align_length(length)
        if length <= max(num_cached + MIN_SHARED_TOKENS_TO_WAIT, leader.num_computed_tokens):
            return None
        leader.cache.plan_snapshots([length])
        return leader, length

    def _find_prefix(self, sequence: Sequence, running: SequenceABC[Sequence]) -> PrefixHit | None:
        """The longest computed prefix, idle or of a running sequence. At least one token is left to compute."""
        max_length = len(sequence.tokens) - 1
        entry, length = self.prefix_cache.longest_match(
            sequence.cache_key, sequence.match_tokens, max_length, sequence.spans
        )
        length = self._align_hit(length, sequence)
        best = PrefixHit(entry.cache, length, entry) if entry and length else None
        for other in running:
            if other is sequence or other.cache_key != sequence.cache_key or not isinstance(other.cache, KVCache):
                continue
            shared = _common_length(other, sequence, min(max_length, other.num_computed_tokens))
            common = self._align_hit(other.cache.reusable_length(shared), sequence)
            if common >= MIN_PREFIX_TOKENS and (best is None or common > best.length):
                best = PrefixHit(other.cache, common, None)
        return best

    def _count_free(self, running: SequenceABC[Sequence]) -> int:
        """Memory in tokens that idle caches may take."""
        return self.max_tokens - sum(sequence.reserved_tokens for sequence in running)

    def _choose_snapshots(self, sequence: Sequence) -> list[int]:
        """Lengths of the prefixes of a sequence that others may reuse, in a model that reuses only planned ones.

        Example: a prompt of 1000 tokens begins like an earlier one of which 700 tokens are equal. With blocks of 64
        tokens, snapshots are planned at 960, for the next turn of the conversation, at 640, since what two prompts
        share is shared by others, and at 448, half of the prompt.
        """
        if not self._forward.state_tokens or not self.enable_prefix_caching:
            return []
        last = len(sequence.tokens) - 1
        common = self.prefix_cache.common_length(sequence.cache_key, sequence.match_tokens, last, sequence.spans)
        lengths = {self._align_length(length) for length in (last, common, last // 2)}
        return [length for length in lengths if length >= MIN_PREFIX_TOKENS]

    def _align_hit(self, length: int, sequence: Sequence) -> int:
        """Rounds a reusable length down as `_align_length` does, unless the cache itself limits it.

        A picture that attends both ways is reused as a whole.
        """
        if self._forward.state_tokens:
            return length
        if sequence.pictures is not None:
            length = sequence.pictures.cut_length(length)
        return self._align_length(length)

    def _align_length(self, length: int) -> int:
        """Rounds a prefix length down to a position at which the model allows a prompt to be split."""
        return length - length % self._forward.prompt_alignment

    def _take_or_copy(self, source: PrefixHit, capacity: int, free: int) -> KVCache:
        """Copies a cache; takes an idle one over if that loses at most a tenth of it, or if a copy does not fit.

        The loss of `MIN_PREFIX_TOKENS` tokens or fewer is always accepted.
        """
        cache, length, entry = source
        if entry is None:
            self.prefix_cache.evict_to(free - capacity)
            return cache.copy(length, capacity)
        if len(entry.tokens) - length > max(len(entry.tokens) // 10, MIN_PREFIX_TOKENS):
            self.prefix_cache.mark_used(entry)
            self.prefix_cache.evict_to(free - capacity, spared=entry)
            if self.prefix_cache.capacity_tokens <= free - capacity:
                return cache.copy(length, capacity)
        self.prefix_cache.pop(entry)
        self.disk.forget(cache, length)
        cache.truncate(length)
        cache.reserve(capacity)
        return cache

    def _choose_capacity(self, sequence: Sequence, free: int) -> int:
        """Capacity for the tokens of a sequence and some slack: at most `free`, but at least what the tokens need."""
        needed = len(sequence.tokens)
        slack = min(GROWTH_TOKENS, max(sequence.max_new_tokens - sequence.num_generated, 0))
        if self._allocate_spare:
            slack = max(slack, needed // SPARE_FRACTION)
        slack = min(slack, max(free - needed, 0) // 8)
        return max(min(round_capacity(needed + slack), free), needed if free >= needed else round_capacity(needed))


def _common_length(one: Sequence, other: Sequence, limit: int) -> int:
    """Length of the prefix that two sequences have in common, at most `limit`."""
    return equal_length(one.spans, other.spans, common_prefix_length(one.match_tokens, other.match_tokens, limit))
