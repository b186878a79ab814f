"""The keys and values of one sequence: what a cache promises, and one that is contiguous in memory.

It knows nothing of models or schedules. Tokens written in a forward pass count only once the pass has succeeded
(:meth:`KV.commit`), so that a pass that fails leaves nothing behind.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

CAPACITY_STEP_TOKENS = 16
"""Capacities that nobody reserved are multiples of this many tokens."""


MAX_FP16 = torch.finfo(torch.float16).max


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
    def write_and_read(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
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


class BufferAddresses(NamedTuple):
    """The addresses of all keys and of all values, and their steps from head to head, counted in numbers."""

    keys: int
    values: int
    key_step: int
    value_step: int


class _LayerBuffers(NamedTuple):
    """A layer's buffers, and what is asked about them for each token."""

    keys: Tensor
    values: Tensor
    capacity: int
    addresses: BufferAddresses


class ContiguousKVCache(KVCache):
    """Per layer two buffers of shape (1, kv_heads, capacity, head_dim); layers announce themselves by writing.

    What is ``expected`` saves copying when the buffers grow. ``halves``: they hold fp16, numbers beyond which become
    its largest.
    """

    def __init__(self, expected: int = 0, *, fp16: bool = False) -> None:
        super().__init__(expected)
        self.fp16 = fp16
        self._layers: dict[int, _LayerBuffers] = {}

    def write_and_read(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`KV.extend`; what it gives are views, or copies of what the buffers hold in fp16."""
        end = self.length + keys.shape[2]
        held = self._ensure_buffers(layer, keys, values, end)
        for buffer, new in ((held.keys, keys), (held.values, values)):
            buffer[:, :, self.length : end] = new.clamp(-MAX_FP16, MAX_FP16) if self.fp16 else new
        return held.keys[:, :, :end].to(keys.dtype), held.values[:, :, :end].to(values.dtype)

    def reserve_addresses(self, layer: int, keys: Tensor, values: Tensor, tokens: int) -> BufferAddresses:
        """Make room for so many after the valid ones, as :meth:`extend` does, but write nothing.

        ``keys`` and ``values`` only show what they will look like.
        """
        return self._ensure_buffers(layer, keys, values, self.length + tokens).addresses

    def _ensure_buffers(self, layer: int, keys: Tensor, values: Tensor, end: int) -> _LayerBuffers:
        """Buffers with room up to ``end``."""
        held = self._layers.get(layer)
        if held is not None and end <= held.capacity:
            return held
        if end > self._capacity:
            self._capacity = round_capacity(end)
        if held is None:
            held = _allocate_buffers(keys, values, self._capacity, torch.float16 if self.fp16 else keys.dtype)
        else:
            held = _copy_buffers(held, self.length, self._capacity)
        self._layers[layer] = held
        return held

    @torch.inference_mode()
    def copy(self, length: int, capacity: int) -> "ContiguousKVCache":
        """As :meth:`KV.copy`."""
        twin = ContiguousKVCache(max(length, capacity), fp16=self.fp16)
        twin.length = min(self.length, length)
        for layer, held in self._layers.items():
            twin._layers[layer] = _copy_buffers(held, twin.length, twin._capacity)
        return twin

    @torch.inference_mode()
    def shrink(self, length: int) -> None:
        """As :meth:`KV.shrink`, layer by layer."""
        self.truncate(length)
        self._capacity = round_capacity(self.length)
        for layer, held in self._layers.items():
            self._layers[layer] = _copy_buffers(held, self.length, self._capacity)

    @property
    def bytes_per_token(self) -> int:
        """As :attr:`KV.bytes_per_token`."""
        return sum(
            buffer.shape[1] * buffer.shape[3] * buffer.element_size()
            for held in self._layers.values()
            for buffer in (held.keys, held.values)
        )


def round_capacity(tokens: int) -> int:
    """The capacity for so many tokens: the next multiple of :data:`GRAIN`."""
    return -(-tokens // CAPACITY_STEP_TOKENS) * CAPACITY_STEP_TOKENS


def _allocate_buffers(keys: Tensor, values: Tensor, capacity: int, dtype: torch.dtype) -> _LayerBuffers:
    """New buffers for what looks like these."""
    one, two = (like.new_empty((1, like.shape[1], capacity, like.shape[3]), dtype=dtype) for like in (keys, values))
    return _LayerBuffers(
        one, two, capacity, BufferAddresses(one.data_ptr(), two.data_ptr(), one.stride(1), two.stride(1))
    )


def _copy_buffers(held: _LayerBuffers, length: int, capacity: int) -> _LayerBuffers:
    """New buffers with the first ``length`` tokens of the old ones."""
    new = _allocate_buffers(held.keys, held.values, capacity, held.keys.dtype)
    new.keys[:, :, :length] = held.keys[:, :, :length]
    new.values[:, :, :length] = held.values[:, :, :length]
    return new


def additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0 where attention may look, else -inf."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, float("-inf"))


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """A (queries, keys) mask, True where attention may look; the last query stands on the last key."""
    place = torch.arange(keys - queries, keys, device=device)[:, None]
    column = torch.arange(keys, device=device)[None, :]
    mask = column <= place
    return mask if window is None else mask & (column > place - window)
