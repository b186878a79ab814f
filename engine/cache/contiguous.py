"""A KV cache in contiguous buffers, two per layer: the layout that a CPU reads fastest."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from antiphon.engine.cache.base import KVCache, round_capacity

MAX_FP16 = torch.finfo(torch.float16).max


class BufferAddresses(NamedTuple):
    """Addresses of a layer's keys and values, and their strides between heads, in elements."""

    keys: int
    values: int
    key_step: int
    value_step: int


class LayerLayout(NamedTuple):
    """Shapes and type of a layer's buffers."""

    layer: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    dtype: str
    """Name in torch, such as `float16`."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token."""
        itemsize = _find_dtype(self.dtype).itemsize
        return (self.key_heads * self.key_dim + self.value_heads * self.value_dim) * itemsize


class _LayerBuffers(NamedTuple):
    """A layer's buffers, with the properties that are needed for each token."""

    keys: Tensor
    values: Tensor
    capacity: int
    addresses: BufferAddresses


class ContiguousKVCache(KVCache):
    """Two buffers of shape (1, kv_heads, capacity, head_dim) per layer, allocated at the layer's first write.

    A good `expected` avoids copying for growth. `fp16`: the buffers hold fp16, and values beyond its range are
    clamped.
    """

    def __init__(self, expected: int = 0, *, fp16: bool = False) -> None:
        super().__init__(expected)
        self.fp16 = fp16
        self.layers: dict[int, _LayerBuffers] = {}

    def write_and_read(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Writes as in `KVCache.write_and_read`. Returns views of the buffers, or copies if these hold fp16."""
        end = self.length + keys.shape[2]
        buffers = self._ensure_buffers(layer, keys, values, end)
        for buffer, new in ((buffers.keys, keys), (buffers.values, values)):
            buffer[:, :, self.length : end] = new.clamp(-MAX_FP16, MAX_FP16) if self.fp16 else new
        return buffers.keys[:, :, :end].to(keys.dtype), buffers.values[:, :, :end].to(values.dtype)

    def reserve_addresses(self, layer: int, keys: Tensor, values: Tensor, tokens: int) -> BufferAddresses:
        """Ensures memory for `tokens` tokens after the valid ones, like `write_and_read`, but writes nothing.

        `keys` and `values` only supply shape, dtype and device.
        """
        return self._ensure_buffers(layer, keys, values, self.length + tokens).addresses

    def _ensure_buffers(self, layer: int, keys: Tensor, values: Tensor, end: int) -> _LayerBuffers:
        """Returns the layer's buffers, with capacity for at least `end` tokens."""
        buffers = self.layers.get(layer)
        if buffers is not None and end <= buffers.capacity:
            return buffers
        if end > self._capacity:
            self._capacity = round_capacity(end)
        if buffers is None:
            buffers = _allocate_buffers(keys, values, self._capacity, torch.float16 if self.fp16 else keys.dtype)
        else:
            buffers = _copy_buffers(buffers, self.length, self._capacity)
        self.layers[layer] = buffers
        return buffers

    @property
    def layout(self) -> tuple[LayerLayout, ...]:
        """The layers that were written to, in ascending order."""
        return tuple(
            LayerLayout(
                layer,
                *(buffers.keys.shape[1], buffers.keys.shape[3]),
                *(buffers.values.shape[1], buffers.values.shape[3]),
                str(buffers.keys.dtype).removeprefix("torch."),
            )
            for layer, buffers in sorted(self.layers.items())
        )

    @torch.inference_mode()
    def allocate_layers(self, layout: Iterable[LayerLayout]) -> None:
        """Allocates the buffers of these layers on the CPU, before the first write to them."""
        for layer, key_heads, key_dim, value_heads, value_dim, dtype in layout:
            keys = torch.empty((1, key_heads, 0, key_dim), dtype=_find_dtype(dtype))
            values = torch.empty((1, value_heads, 0, value_dim), dtype=_find_dtype(dtype))
            self.layers[layer] = _allocate_buffers(keys, values, self._capacity, keys.dtype)

    def view_tokens(self, start: int, end: int) -> list[np.ndarray]:
        """Returns the bytes of tokens in memory of the CPU, without a copy: keys, then values, of the layers in order.

        Each array is (heads, end - start, bytes); fewer tokens if the buffers hold fewer.
        """
        return [
            buffer[0, :, start:end].view(torch.uint8).numpy()
            for _, buffers in sorted(self.layers.items())
            for buffer in (buffers.keys, buffers.values)
        ]

    @torch.inference_mode()
    def copy(self, length: int, capacity: int) -> "ContiguousKVCache":
        """Copies the buffers; see `KVCache.copy`."""
        clone = ContiguousKVCache(max(length, capacity), fp16=self.fp16)
        self.copy_buffers_to(clone, length)
        return clone

    def copy_buffers_to(self, clone: "ContiguousKVCache", length: int) -> None:
        """Copies the first `length` tokens to an empty cache."""
        clone.length = min(self.length, length)
        for layer, buffers in self.layers.items():
            clone.layers[layer] = _copy_buffers(buffers, clone.length, clone._capacity)

    @torch.inference_mode()
    def shrink(self, length: int) -> None:
        """Replaces the buffers by smaller ones, one layer at a time; see `KVCache.shrink`."""
        self.truncate(length)
        self._capacity = round_capacity(self.length)
        for layer, buffers in self.layers.items():
            self.layers[layer] = _copy_buffers(buffers, self.length, self._capacity)

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token over all layers; 0 before the first pass."""
        return sum(
            buffer.shape[1] * buffer.shape[3] * buffer.element_size()
            for buffers in self.layers.values()
            for buffer in (buffers.keys, buffers.values)
        )


def _allocate_buffers(keys: Tensor, values: Tensor, capacity: int, dtype: torch.dtype) -> _LayerBuffers:
    """Allocates buffers with the heads, head_dim and device of `keys` and `values`."""
    key_buffer, value_buffer = (
        like.new_empty((1, like.shape[1], capacity, like.shape[3]), dtype=dtype) for like in (keys, values)
    )
    return _LayerBuffers(
        key_buffer,
        value_buffer,
        capacity,
        BufferAddresses(key_buffer.data_ptr(), value_buffer.data_ptr(), key_buffer.stride(1), value_buffer.stride(1)),
    )


def _copy_buffers(source: _LayerBuffers, length: int, capacity: int) -> _LayerBuffers:
    """Allocates buffers and copies the first `length` tokens of `source` into them."""
    new = _allocate_buffers(source.keys, source.values, capacity, source.keys.dtype)
    new.keys[:, :, :length] = source.keys[:, :, :length]
    new.values[:, :, :length] = source.values[:, :, :length]
    return new


def _find_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
