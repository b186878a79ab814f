"""A KV cache in contiguous buffers, two per layer, as the CPU reads it fastest."""

from typing import NamedTuple

import torch
from torch import Tensor

from antiphon.engine.cache.base import KVCache, round_capacity

MAX_FP16 = torch.finfo(torch.float16).max


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
