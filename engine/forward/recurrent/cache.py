"""A cache of keys, values and recurrent states. States exist at the last token and at snapshots, not in between."""

import torch

from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.forward.recurrent.states import StateBatch, stack_rows

MAX_SNAPSHOTS = 3
"""Maximum number of snapshots of a sequence. Each takes as much memory as the states of the sequence itself."""

STATE_UNIT_TOKENS = 256
"""Tokens that the states of a sequence count as in a model without keys and values: only their ratio matters there."""


class RecurrentCache(ContiguousKVCache):
    """The cache of one sequence in a model with recurrent layers.

    Keys and values of a prefix are the first ones of the cache, but its states are lost when later tokens are read. A
    snapshot keeps the states after a number of tokens that was planned before these were read; only prefixes that end
    at a snapshot, or at the last token, can be reused. `state_tokens` is the memory of the states of one sequence, in
    tokens. While a sequence runs, memory for all its possible snapshots is counted.
    """

    def __init__(self, expected: int = 0, *, fp16: bool = False, state_tokens: int = 0) -> None:
        super().__init__(expected, fp16=fp16)
        self.states = StateBatch()
        self.row = 0
        self.block_bounds: list[int] = []
        """Bounds of the blocks in which layers process the tokens of the current pass, relative to its first one."""
        self.is_prompt_state = True
        """False if the states depend on which tokens were generated, and hence are those of no other prompt."""
        self._state_tokens = state_tokens
        self._snapshots: dict[int, StateBatch] = {}
        self._planned: set[int] = set()
        self._is_parked = False

    @property
    def snapshot_lengths(self) -> list[int]:
        """Lengths of the prefixes that have a snapshot, in ascending order."""
        return sorted(self._snapshots)

    @property
    def memory_tokens(self) -> int:
        """Memory in tokens: the capacity, the states, and the snapshots or the places for them."""
        snapshots = len(self._snapshots) if self._is_parked else MAX_SNAPSHOTS
        return self.capacity + self._state_tokens * (1 + snapshots)

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token of keys and values; of states if there are no others. 0 before the first pass."""
        return super().bytes_per_token or self.states.bytes_per_sequence // STATE_UNIT_TOKENS

    def reusable_length(self, limit: int) -> int:
        """Returns the length of the longest prefix of at most `limit` tokens whose states exist."""
        if self.length <= limit and self.is_prompt_state:
            return self.length
        return max((length for length in self._snapshots if length <= limit), default=0)

    def plan_snapshots(self, lengths: list[int]) -> None:
        """Plans snapshots after these numbers of tokens, as far as these are still to be read."""
        self._planned |= {length for length in lengths if length > self.length}

    def take_snapshot(self, layer: int, length: int) -> None:
        """Copies the states of a layer, which has read `length` tokens, if a snapshot is planned there."""
        if length in self._planned:
            self.states.copy_layer_to(self._snapshots.setdefault(length, StateBatch()), layer)

    def commit(self, tokens: int) -> None:
        """Makes the tokens just read valid; drops the least useful snapshots if there are too many."""
        super().commit(tokens)
        self._planned = {length for length in self._planned if length > self.length}
        while len(self._snapshots) > MAX_SNAPSHOTS:
            del self._snapshots[find_least_useful(self.snapshot_lengths)]

    @torch.inference_mode()
    def own_states(self) -> StateBatch:
        """Returns the states of this sequence in a batch of their own."""
        if self.states.size > 1:
            self.states, self.row = self.states.copy_row(self.row), 0
        return self.states

    def park(self) -> None:
        """Ends the use by a sequence: releases the states of sequences that ran with it."""
        self.own_states()
        self._planned.clear()
        self._is_parked = True

    def unpark(self) -> None:
        """Begins the use by another sequence."""
        self._is_parked = False

    @torch.inference_mode()
    def copy(self, length: int, capacity: int) -> "RecurrentCache":
        """Copies a prefix whose states exist; see `reusable_length`. The copies share their snapshots."""
        clone = RecurrentCache(max(length, capacity), fp16=self.fp16, state_tokens=self._state_tokens)
        self.copy_buffers_to(clone, length)
        clone.states = self._copy_states(clone.length)
        clone._snapshots = {length: states for length, states in self._snapshots.items() if length <= clone.length}
        return clone

    @torch.inference_mode()
    def truncate(self, length: int) -> None:
        """Drops all but a prefix whose states exist."""
        if length >= self.length:
            return
        self.states, self.row, self.is_prompt_state = self._copy_states(length), 0, True
        self._snapshots = {other: states for other, states in self._snapshots.items() if other <= length}
        super().truncate(length)

    def _copy_states(self, length: int) -> StateBatch:
        if length == self.length:
            return self.states.copy_row(self.row)
        if not length:
            return StateBatch()
        return self._snapshots[length].copy_row(0)


def find_least_useful(lengths: list[int]) -> int:
    """Returns which of these snapshots to drop: the one whose loss costs fewest tokens. The longest is kept.

    Example: of the lengths 64, 1024, 1088 and 2048 it is 64: a prefix that could have used it is computed from 0.
    """
    costs = {length: length - previous for previous, length in zip([0, *lengths], lengths[:-1], strict=False)}
    return min(costs, key=lambda length: costs[length])


def join_states(caches: list[RecurrentCache], multiple: int = 1) -> StateBatch:
    """Returns one batch with the states of these sequences in this order, which then share it.

    The batch is padded to a multiple of `multiple` rows. Sequences that already share a batch in this order keep it,
    so that steps of the same sequences copy nothing.
    """
    batch, padding = caches[0].states, -len(caches) % multiple
    if batch.size != len(caches) + padding or any(
        cache.states is not batch or cache.row != row for row, cache in enumerate(caches)
    ):
        batch = stack_rows([(cache.states, cache.row) for cache in [*caches, *caches[:1] * padding]])
        for row, cache in enumerate(caches):
            cache.states, cache.row = batch, row
    return batch
