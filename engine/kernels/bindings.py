"""The kernels of a compiled library on torch's tensors; :mod:`engine.kernels.library` has the library.

What they do is done by torch, in more steps, where there are none. They are for fp32 on a CPU. Like there, rows are the
last dimension; each is computed in one order, so that its bits depend on nothing else.
"""

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from antiphon.engine.kernels.int8_layout import MAX_GEMM_INPUTS, PackedInt8Weight, pack_int8_weight

MAX_QUERY_GROUPS = 64
"""Queries that may share a head of keys."""

MAX_HEAD_DIM = 512
"""Numbers of a key or a value."""

SOFTMAX_BLOCK = 128
"""Scores of which :meth:`Kernels.weigh` tells the sum of weights."""

GEMM_TILE_ROWS = 16
"""Rows of a tile in ``products.c``, which has room for whole ones."""


class Kernels:
    """The loaded library. Raises :class:`AttributeError` if it lacks one of them.

    ``layer`` takes the address of a ``struct layer``, as :mod:`engine.optimize.decoder_layer` writes it; ``room``
    says for how many numbers it needs room. ``levels``: magnitudes that an activation may have in :meth:`multiply`;
    0: there is none. ``halves``: whether :meth:`attend` knows caches in fp16.
    """

    def __init__(self, loaded: ctypes.CDLL) -> None:
        for said in (loaded.antiphon_lanes, loaded.antiphon_levels, loaded.antiphon_halves):
            said.restype = ctypes.c_int64
        self._lanes, self.activation_levels = int(loaded.antiphon_lanes()), int(loaded.antiphon_levels())
        self.supports_fp16_cache = bool(loaded.antiphon_halves())
        self.decoder_layer_workspace = loaded.antiphon_room
        self.decoder_layer_workspace.argtypes, self.decoder_layer_workspace.restype = [ctypes.c_void_p], ctypes.c_int64
        self._attend, self._norm, self._gate, self._turn, self._weigh, self._multiply, self.decoder_layer = (
            _load_function(loaded, name, *kinds)
            for name, *kinds in (
                ("attend", ctypes.c_float),
                ("norm", ctypes.c_float),
                ("gate",),
                ("turn",),
                ("weigh",),
                ("multiply",),
                ("layer",),
            )
        )

    def is_row_aligned(self, size: int) -> bool:
        """Whether they know rows of so many numbers."""
        return size % self._lanes == 0

    def supports_attention(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> bool:
        """Whether :meth:`attend` can do this."""
        plain = query.dtype is key.dtype is value.dtype is torch.float32
        known = all(size <= MAX_HEAD_DIM and self.is_row_aligned(size) for size in (query.shape[3], value.shape[3]))
        if sinks is not None and not (sinks.dtype is torch.float32 and sinks.is_contiguous()):
            return False
        groups = query.shape[1] // key.shape[1]
        alone = query.stride(3) == key.stride(3) == value.stride(3) == 1
        return plain and known and groups <= MAX_QUERY_GROUPS and alone

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        table: Sequence[int],
        scale: float,
        *,
        window: int | None = None,
        sinks: Tensor | None = None,
        fp16_cache: bool = False,
    ) -> Tensor:
        """Queries (1, heads, n, dim), each over its own sequence's keys up to its own → (1, n, heads, value_dim).

        ``table`` has eight numbers for each sequence: where its tokens begin, and how many there are; the addresses of
        its keys and values (kv_heads, capacity, …), in fp32 or fp16, and their steps from head to head; how many keys
        it has with these, which are written there from ``key`` and ``value`` (1, kv_heads, n, …); and any number.
        """
        numbers = array("q", table)
        kv_heads = key.shape[1]
        out = query.new_empty((1, query.shape[2], query.shape[1], value.shape[3]))
        words = array(
            "q",
            (
                len(numbers) // 8,
                kv_heads,
                query.shape[1] // kv_heads,
                query.shape[3],
                value.shape[3],
                _num_threads(),
                fp16_cache,
                window or 0,
                *_address_and_strides(query),
                *_address_and_strides(key),
                *_address_and_strides(value),
                0 if sinks is None else sinks.data_ptr(),
                out.data_ptr(),
                numbers.buffer_info()[0],
            ),
        )
        self._attend(words.buffer_info()[0], scale)
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Each row x becomes x / √(mean(x²) + eps) · weight."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        x, words = _row_table(x, out, weight)
        self._norm(words.buffer_info()[0], eps)
        return out

    def silu_mul(self, x: Tensor) -> Tensor:
        """The first half of each row through SiLU, times the second; x (…, 2n) is contiguous."""
        *shape, double = x.shape
        size = double // 2
        out = x.new_empty((*shape, size))
        words = array(
            "q", (x.data_ptr(), x.numel() // double, size, 1, double, 0, out.data_ptr(), 0, 0, _num_threads())
        )
        self._gate(words.buffer_info()[0])
        return out

    def supports_rotary(self, x: Tensor, cosines: Tensor, sines: Tensor) -> bool:
        """Whether :meth:`turn` can do this."""
        if (
            x.dim() != 4
            or len(x) != 1
            or x.shape[3] % 2
            or x.stride(3) != 1
            or not self.is_row_aligned(x.shape[3] // 2)
        ):
            return False
        plain = x.dtype is cosines.dtype is sines.dtype is torch.float32 and x.is_cpu
        alike = cosines.shape == sines.shape == (1, *x.shape[2:])
        return plain and alike and cosines.is_contiguous() and sines.is_contiguous()

    def apply_rotary(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Rotary positions of (1, heads, n, dim), whose last steps are 1, by two contiguous tables (1, n, dim).

        As transformers does it: each half of a row is turned by the other.
        """
        _, heads, length, size = x.shape
        out = x.new_empty((1, length, heads, size))
        _, inner_step, outer_step, _ = x.stride()
        tables = (cosines.data_ptr(), sines.data_ptr())
        rows = (heads * length, size, heads, outer_step, inner_step)
        words = array("q", (x.data_ptr(), *rows, out.data_ptr(), *tables, _num_threads()))
        self._turn(words.buffer_info()[0])
        return out.transpose(1, 2)

    def block_softmax_sums(self, x: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        """Weights e^((x - the row's largest) · by) of (rows, n), added up in blocks of :data:`BLOCK`, and the largest.

        (rows, blocks), (rows, 1). ``by`` has a number for each row. Of a row that holds no number the largest is none.
        """
        count, size = x.shape
        out = torch.empty(count, -(-size // SOFTMAX_BLOCK) + 1)
        x, words = _row_table(x, out, by)
        self._weigh(words.buffer_info()[0])
        return out[:, :-1], out[:, -1:]

    def supports_int8_linear(self, weight: Tensor) -> bool:
        """Whether :meth:`multiply` can do this; it knows not every CPU."""
        return self.activation_levels > 0 and weight.dtype is torch.float32 and 0 < weight.shape[1] <= MAX_GEMM_INPUTS

    def pack_int8_weight(self, weight: Tensor) -> PackedInt8Weight:
        """A weight (outputs, inputs) in int8, laid out for :meth:`multiply`."""
        return pack_int8_weight(weight, self._lanes, self.activation_levels + 1)

    def int8_linear(
        self, x: Tensor, weight: PackedInt8Weight, bias: Tensor | None = None, *, gated: bool = False
    ) -> Tensor:
        """(…, inputs) → (…, outputs). Each row is rounded to levels of its own largest magnitude.

        A row of zeros gives the bias; one that holds what is no finite number gives none. ``gated``: x (…, 2 inputs)
        goes through :meth:`gate` first, and is written to; inputs :meth:`fit`.
        """
        x = x.contiguous()
        count = x.numel() // x.shape[-1]
        out = x.new_empty((*x.shape[:-1], weight.outputs))
        tiles = -(-count // GEMM_TILE_ROWS)
        rows = torch.empty(tiles * GEMM_TILE_ROWS * weight.weights.shape[1] * 4, dtype=torch.uint8)
        magnitudes = torch.empty(count)
        words = array(
            "q",
            (
                x.data_ptr(),
                count,
                weight.inputs,
                weight.outputs,
                weight.weights.data_ptr(),
                weight.scales.data_ptr(),
                weight.zeros.data_ptr(),
                0 if bias is None else bias.data_ptr(),
                0,
                out.data_ptr(),
                rows.data_ptr(),
                magnitudes.data_ptr(),
                gated,
                _num_threads(),
            ),
        )
        self._multiply(words.buffer_info()[0])
        return out


def _load_function(loaded: ctypes.CDLL, name: str, *kinds: Any) -> Any:
    """One that takes the address of its words, and what else is said."""
    function = getattr(loaded, f"antiphon_{name}")
    function.argtypes, function.restype = [ctypes.c_void_p, *kinds], None
    return function


_num_threads = torch.get_num_threads


def _address_and_strides(x: Tensor) -> tuple[int, int, int]:
    """Where (1, heads, n, dim) begins, and the steps to the next token and to the next head."""
    _, head, token, _ = x.stride()
    return x.data_ptr(), token, head


def _row_table(x: Tensor, out: Tensor, by: Tensor) -> tuple[Tensor, "array[int]"]:
    """``struct rows`` about x, and x, which must live until it was read: two steps must lead from row to row."""
    size = x.shape[-1]
    inner, outer_step, inner_step = 1, size, 0
    if not x.is_contiguous():
        if x.dim() == 4 and len(x) == 1 and x.stride(3) == 1:
            inner, (_, outer_step, inner_step, _) = x.shape[2], x.stride()
        else:
            x = x.contiguous()
    count = x.numel() // size
    threads = _num_threads()
    return x, array(
        "q", (x.data_ptr(), count, size, inner, outer_step, inner_step, out.data_ptr(), by.data_ptr(), 0, threads)
    )
