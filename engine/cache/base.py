"""The interface of a KV cache: the keys and values of one sequence. Imports no torch, so that the scheduler needs none.

A forward pass writes tokens first and commits them once it has succeeded (:meth:`KVCache.commit`), so that a pass that
fails leaves nothing behind.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CAPACITY_STEP_TOKENS = 16
"""Capacities that nobody reserved are multiples of this many tokens."""


class KVCache(ABC):
    """The first ``length`` tokens are valid; there is memory for ``capacity``, in tokens.

    ``expected``: how many tokens the sequence will probably hold.
    """

    def __init__(self, expected: int = 0) -> None:
        self.length = 0
        self._capacity = expected

    @property
    def capacity(self) -> int:
        """For how many tokens there is memory, or will be with the next token that is written."""
        return self._capacity

    def reserve(self, tokens: int) -> None:
        """Grow to room for ``tokens`` tokens; the memory is taken by the next pass that needs it."""
        self._capacity = max(self._capacity, tokens)

    def commit(self, tokens: int) -> None:
        """The pass succeeded: the last ``tokens`` written are valid from now on."""
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` tokens; the memory stays."""
        self.length = min(self.length, length)

    @abstractmethod
    def write_and_read(self, layer: int, keys: "Tensor", values: "Tensor") -> "tuple[Tensor, Tensor]":
        """Write (1, kv_heads, n, head_dim) after the valid tokens; all keys and values, these included."""

    @abstractmethod
    def copy(self, length: int, capacity: int) -> "KVCache":
        """The first ``length`` tokens once more, with room for ``capacity``; neither sees what the other writes."""

    @abstractmethod
    def shrink(self, length: int) -> None:
        """Forget all but the first ``length`` tokens and give the rest of the memory back."""

    @property
    @abstractmethod
    def bytes_per_token(self) -> int:
        """Bytes that one token takes over all layers; 0 before the first pass."""


def round_capacity(tokens: int) -> int:
    """The capacity for so many tokens: the next multiple of :data:`GRAIN`."""
    return -(-tokens // CAPACITY_STEP_TOKENS) * CAPACITY_STEP_TOKENS
