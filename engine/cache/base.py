"""Interface of a KV cache: the keys and values of one sequence. Imports no torch, so that the scheduler needs none.

A forward pass writes tokens first and commits them after it has succeeded (`KVCache.commit`). The tokens of a
failed pass therefore never become valid.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CAPACITY_STEP_TOKENS = 16
"""Granularity, in tokens, of capacities that were not reserved explicitly."""


class KVCache(ABC):
    """Keys and values of one sequence. The first `length` tokens are valid; `capacity` is in tokens.

    `expected`: the number of tokens that the sequence will probably hold.
    """

    def __init__(self, expected: int = 0) -> None:
        self.length = 0
        self._capacity = expected

    @property
    def capacity(self) -> int:
        """Number of tokens that there is memory for, or will be when the next token is written."""
        return self._capacity

    @property
    def memory_tokens(self) -> int:
        """Memory that the cache takes, in tokens: the capacity, and what does not depend on the number of tokens."""
        return self.capacity

    def reusable_length(self, limit: int) -> int:
        """Returns the length of the longest prefix of at most `limit` tokens that `copy` can copy."""
        return min(self.length, limit)

    def plan_snapshots(self, lengths: list[int]) -> None:  # noqa: B027  most caches need no snapshots
        """Makes prefixes of these lengths reusable, as far as they are still to be read."""

    def park(self) -> None:  # noqa: B027
        """Ends the use by a sequence; the cache may be copied, truncated and shrunk only."""

    def unpark(self) -> None:  # noqa: B027
        """Begins the use by another sequence, after `park`."""

    def reserve(self, tokens: int) -> None:
        """Raises the capacity to at least `tokens`. The next pass that needs the memory allocates it."""
        self._capacity = max(self._capacity, tokens)

    def commit(self, tokens: int) -> None:
        """Makes the `tokens` tokens just written valid, after a pass that succeeded."""
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Drops all but the first `length` tokens; keeps the memory."""
        self.length = min(self.length, length)

    @abstractmethod
    def write_and_read(self, layer: int, keys: "Tensor", values: "Tensor") -> "tuple[Tensor, Tensor]":
        """Writes (1, kv_heads, n, head_dim) after the valid tokens. Returns all keys and values, old and new."""

    @abstractmethod
    def copy(self, length: int, capacity: int) -> "KVCache":
        """Returns a copy of the first `length` tokens with this capacity. Writes to one do not affect the other."""

    @abstractmethod
    def shrink(self, length: int) -> None:
        """Drops all but the first `length` tokens and frees the remaining memory."""

    @property
    @abstractmethod
    def bytes_per_token(self) -> int:
        """Bytes per token over all layers; 0 before the first pass."""


def round_capacity(tokens: int) -> int:
    """Rounds a number of tokens up to a multiple of `CAPACITY_STEP_TOKENS`."""
    return -(-tokens // CAPACITY_STEP_TOKENS) * CAPACITY_STEP_TOKENS
