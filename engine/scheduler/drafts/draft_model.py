"""A draft model: a small model that proposes the next tokens of the target model's sequences, which verifies them.

It has a KV cache of its own for each sequence. Wrong proposals cost time and change no token.
"""

import torch
from torch import Tensor

from antiphon.engine.cache.base import KVCache, round_capacity
from antiphon.engine.forward.interface import ForwardPass, SequenceInput
from antiphon.engine.scheduler.cache_manager import GROWTH_TOKENS
from antiphon.engine.scheduler.prefix_cache import PrefixCache
from antiphon.engine.scheduler.sequence import Sequence

MAX_LAG_TOKENS = 16
"""Tokens that the first pass of a draft reads at most. A cache that lacks more reads them in chunks before."""


class _DraftCache:
    """The draft model's cache of a sequence.

    After a draft it holds the `start` tokens that the sequence had then, and all tokens of `draft` but the last.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.start = 0
        self.draft: list[int] = []

    def drop_rejected(self, tokens: "list[int]") -> None:
        """Truncates the cache to what it has in common with the sequence, whose tokens after `start` are given."""
        accepted = 0
        for drafted, token in zip(self.draft, tokens, strict=False):
            if drafted != token:
                break
            accepted += 1
        if self.draft:
            self.cache.truncate(self.start + accepted)
            self.draft = []


class DraftModel:
    """Proposes tokens greedily, in one packed pass over all sequences for each position.

    `max_tokens` limits the capacity of all caches together. Those of finished sequences, at most `max_idle_tokens`, are
    kept for sequences with the same prefix, as the target model's are. `max_model_len` is the context of the draft
    model. Ids of `vocab_size` and above, which pad one of the two models, are neither read nor proposed;
    `suppressed_ids` are not proposed.
    """

    def __init__(
        self,
        forward: ForwardPass,
        *,
        vocab_size: int,
        max_model_len: int,
        max_tokens: int,
        max_idle_tokens: int | None = None,
        suppressed_ids: tuple[int, ...] = (),
    ) -> None:
        self._forward = forward
        self._max_idle_tokens = max_tokens if max_idle_tokens is None else max_idle_tokens
        self._vocab_size, self._max_model_len, self.max_tokens = vocab_size, max_model_len, max_tokens
        self._suppressed_ids = [token for token in suppressed_ids if token < vocab_size]
        self.caches: dict[str, _DraftCache] = {}
        self._prefix_cache = PrefixCache()

    @property
    def memory_tokens(self) -> int:
        """Capacity of all caches, in tokens."""
        return self._running_tokens() + self._prefix_cache.capacity_tokens

    def count_unread(self, sequence: Sequence, max_draft: int) -> int | None:
        """Returns how many tokens of a sequence its cache lacks, at least one; creates the cache if there is none.

        None if a draft of `max_draft` tokens is impossible: the cache has no memory for it, or the model's context or
        vocabulary ends.
        """
        needed = len(sequence.tokens) + max_draft
        held = self.caches.get(sequence.job.id)
        if needed > self._max_model_len:
            return None
        if held is None or held.cache.capacity < needed:
            capacity = self._make_room(held, needed)
            if not capacity:
                return None
            if held is None:
                held = self.caches[sequence.job.id] = _DraftCache(self._open_cache(sequence, capacity))
            held.cache.reserve(capacity)
        held.drop_rejected(sequence.tokens[held.start :].tolist())
        unread = sequence.tokens[held.cache.length :]
        return len(unread) if max(unread) < self._vocab_size else None

    @torch.inference_mode()
    def read(self, chunks: list[tuple[Sequence, int]]) -> None:
        """Reads the next tokens of sequences, as many as given for each, into their caches."""
        inputs = []
        for sequence, count in chunks:
            cache = self.caches[sequence.job.id].cache
            inputs.append(SequenceInput(cache, sequence.tokens[cache.length : cache.length + count].tolist(), 0))
        self._forward.run(inputs)

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], lengths: list[int]) -> list[list[int]]:
        """Returns a draft of each sequence, of at most `lengths` tokens; it ends with a stop token.

        Reads all unread tokens of the sequences before.
        """
        held = [self.caches[sequence.job.id] for sequence in sequences]
        drafts: list[list[int]] = [[] for _ in sequences]
        inputs = {
            index: sequence.tokens[held[index].cache.length :].tolist()
            for index, sequence in enumerate(sequences)
            if lengths[index] > 0
        }
        while inputs:
            logits = self._forward.run([SequenceInput(held[index].cache, ids, 1) for index, ids in inputs.items()])
            tokens = dict(zip(inputs, self.pick(logits), strict=True))
            for index, token in tokens.items():
                drafts[index].append(token)
            inputs = {
                index: [token]
                for index, token in tokens.items()
                if len(drafts[index]) < lengths[index] and token not in sequences[index].stop_ids
            }
        for cache, sequence, draft in zip(held, sequences, drafts, strict=True):
            cache.start, cache.draft = len(sequence.tokens), draft
        return [list(draft) for draft in drafts]

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """Takes the cache of a sequence that no longer runs, and keeps it for others if `keep` is set."""
        held = self.caches.pop(sequence.job.id, None)
        if held is None or not keep:
            return
        held.drop_rejected(sequence.tokens[held.start :].tolist())
        self._prefix_cache.insert(sequence.cache_key, sequence.tokens[: held.cache.length], held.cache)
        self._prefix_cache.evict_to(min(self.max_tokens - self._running_tokens(), self._max_idle_tokens))

    def pick(self, logits: Tensor) -> list[int]:
        """Returns the most likely token of each row (rows, vocabulary)."""
        logits = logits[:, : self._vocab_size]
        if self._suppressed_ids:
            logits[:, self._suppressed_ids] = float("-inf")
        return logits.argmax(-1).tolist()

    def _running_tokens(self) -> int:
        return sum(held.cache.memory_tokens for held in self.caches.values())

    def _make_room(self, held: _DraftCache | None, needed: int) -> int:
        """Evicts caches of finished sequences for one that holds `needed` tokens. Returns its capacity, 0 for none."""
        free = self.max_tokens - self._running_tokens() + (0 if held is None else held.cache.memory_tokens)
        capacity = min(round_capacity(needed + GROWTH_TOKENS), free)
        if capacity < needed:
            return 0
        self._prefix_cache.evict_to(free - capacity)
        return capacity

    def _open_cache(self, sequence: Sequence, capacity: int) -> KVCache:
        """Returns a cache with the longest prefix that another sequence has left."""
        entry, length = self._prefix_cache.longest_match(sequence.cache_key, sequence.tokens, len(sequence.tokens) - 1)
        if entry is None:
            cache: KVCache = self._forward.new_cache(capacity)
            return cache
        free = self.max_tokens - self._running_tokens() - self._prefix_cache.capacity_tokens
        if len(entry.tokens) > length and capacity <= free:
            self._prefix_cache.mark_used(entry)
            return entry.cache.copy(length, capacity)
        taken = self._prefix_cache.pop(entry)
        taken.truncate(length)
        return taken
