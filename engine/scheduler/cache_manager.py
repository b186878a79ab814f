"""Whose tokens the cache holds: running sequences first, and in what is left, what ended ones leave behind.

It gives a sequence its cache, with as much of its prompt as is known already, and takes it back. ``room`` bounds what
is allocated for all together; it counts tokens, by capacity, not by use.
"""

from collections.abc import Sequence as Several
from typing import NamedTuple

from antiphon.engine.cache.contiguous import KV, rounded
from antiphon.engine.model.forward import Forward
from antiphon.engine.scheduler.prefix_cache import LEAST, Entry, Prefixes
from antiphon.engine.scheduler.sequence import Sequence, shared

SLACK = 128
"""A cache grows by this many tokens: each decoded token reads it whole, so that a copy for 128 of them is little."""

AGAIN = 8
"""A text gets room for so large a part of it more: it may come back with another turn, and is not copied then."""

PATIENCE = 4 * LEAST
"""Waiting for another sequence to compute a common beginning pays if it is longer than known by so many tokens."""


class Source(NamedTuple):
    """Where a beginning of ``length`` tokens can be read; ``entry``: it is idle and may be taken over."""

    kv: KV
    length: int
    entry: Entry | None


class Memory:
    """``room``: tokens of running and idle caches together. ``idle``: of idle ones alone.

    ``reuse`` False, or a model whose prompts cannot be fed in pieces: nothing is kept or shared.
    """

    def __init__(self, forward: Forward, *, room: int, idle: int, reuse: bool = True) -> None:
        self.prefixes = Prefixes()
        self._forward = forward
        self._room = room
        self._idle = idle
        self._reuse = reuse and forward.chunked
        self._spare = self._reuse and not forward.paged
        """Whether caches get room that only a next turn needs; growing, paged ones are not copied."""

    def open(self, sequence: Sequence, running: Several[Sequence]) -> int:
        """Give one of those that run its cache; how many of its tokens are in there already."""
        free = self._room - sum(other.size for other in running if other is not sequence)
        capacity = self._capacity(sequence, free)
        source = None if sequence.measures or not self._reuse else self._source(sequence, running)
        if source is None:
            sequence.state = self._forward.new_state(capacity)
        else:
            sequence.state = self._read(source, capacity, free)
            sequence.fed = source.length
        self.fit(running)
        return sequence.fed

    def close(self, sequence: Sequence, *, sound: bool = True) -> None:
        """Take its cache away, and keep it if it is sound."""
        state, fed = sequence.state, sequence.fed
        sequence.state, sequence.fed = None, 0
        if sound and self._reuse and isinstance(state, KV) and state.length == fed:
            self.prefixes.keep(sequence.key, sequence.tokens[:fed], state)
            self.prefixes.fit(self._idle)

    def grow(self, running: Several[Sequence]) -> None:
        """Reserve what each needs for the tokens it has; their sizes must fit together, or only one runs."""
        total = sum(sequence.size for sequence in running)
        for sequence in running:
            if isinstance(sequence.state, KV) and sequence.state.capacity < len(sequence.tokens):
                total -= sequence.size
                sequence.state.reserve(self._capacity(sequence, self._room - total))
                total += sequence.size
        self.fit(running)

    def fit(self, running: Several[Sequence]) -> None:
        """Let go of idle caches until all fits."""
        self.prefixes.fit(min(self._room - sum(sequence.size for sequence in running), self._idle))

    def leader(self, sequence: Sequence, running: Several[Sequence]) -> tuple[Sequence, int] | None:
        """Who of those that run is about to compute much of what this one needs, and how many tokens of it."""
        if not self._reuse or sequence.measures:
            return None
        most = len(sequence.tokens) - 1
        best, length = None, 0
        for other in running:
            if other.key == sequence.key and other.pending > 1:
                common = shared(other.tokens, sequence.tokens, most)
                if common > max(length, other.fed):
                    best, length = other, common
        if best is None:
            return None
        source = self._source(sequence, running)
        known = source.length if source else 0
        return (best, length) if length > known + PATIENCE else None

    def _source(self, sequence: Sequence, running: Several[Sequence]) -> Source | None:
        most = len(sequence.tokens) - 1
        entry, length = self.prefixes.find(sequence.key, sequence.tokens, most)
        length = self._whole(length)
        best = Source(entry.kv, length, entry) if entry and length else None
        for other in running:
            if other is sequence or other.key != sequence.key or not isinstance(other.state, KV):
                continue
            common = self._whole(shared(other.tokens, sequence.tokens, min(most, other.fed)))
            if common >= LEAST and (best is None or common > best.length):
                best = Source(other.state, common, None)
        return best

    def _whole(self, length: int) -> int:
        """As much of a beginning as can be gone on from: where a prompt may be cut."""
        return length - length % self._forward.grain

    def _read(self, source: Source, capacity: int, free: int) -> KV:
        """Take an idle cache over if little of it is lost, or if there is no memory for a copy; else copy."""
        kv, length, entry = source
        if entry is None:
            self.prefixes.fit(free - capacity)
            return kv.copy(length, capacity)
        if len(entry.tokens) - length > max(len(entry.tokens) // 10, LEAST):
            self.prefixes.touch(entry)
            self.prefixes.fit(free - capacity, spared=entry)
            if self.prefixes.held <= free - capacity:
                return kv.copy(length, capacity)
        self.prefixes.take(entry)
        kv.truncate(length)
        kv.reserve(capacity)
        return kv

    def _capacity(self, sequence: Sequence, free: int) -> int:
        """What to allocate for its tokens and some more, at most what is free, and at least what its tokens need."""
        needed = len(sequence.tokens)
        slack = min(SLACK, max(sequence.limit - sequence.said, 0))
        if self._spare:
            slack = max(slack, needed // AGAIN)
        slack = min(slack, max(free - needed, 0) // 8)
        return max(min(rounded(needed + slack), free), needed if free >= needed else rounded(needed))
