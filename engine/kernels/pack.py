"""Python binding of `pack.c`: quantizes and packs a weight from the type in which it is stored."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from antiphon.engine.kernels.int4_layout import INT4_GROUP_INPUTS, PackedInt4Weight
from antiphon.engine.kernels.int8_layout import GEMM_TILE_INPUTS, PackedInt8Weight, round_up
from antiphon.engine.kernels.native_calls import count_threads, int64_fields, load_function
from antiphon.engine.kernels.weight_rows import WeightRows

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Types of stored weights, and their numbers in `pack.c`. Weights of other types are converted to fp32 first."""

OUTPUTS_PER_CALL = 1024
"""Outputs that are packed before the pages of their rows are given back; a multiple of twice the lanes."""


class PackArgs(ctypes.Structure):
    """`struct pack_args` of `pack.c`."""

    _fields_ = int64_fields("rows outputs inputs type first_block end_block weights scales zeros group_scales threads")


class WeightPacker:
    """Quantizes weights (outputs, inputs). `lanes` are the outputs of a block.

    The results have the same bits as those of `int8_layout.py` and `int4_layout.py`.
    """

    def __init__(self, library: ctypes.CDLL, lanes: int) -> None:
        self._lanes = lanes
        self._pack_int8 = load_function(library, "pack_int8", PackArgs)
        self._pack_int4 = load_function(library, "pack_int4", PackArgs)

    def pack_int8(self, weight: Tensor | WeightRows) -> PackedInt8Weight:
        """Packs with one scale per output."""
        rows = _weight_rows(weight)
        outputs, inputs = rows.shape
        blocks, padded_inputs = self._count_blocks(outputs), round_up(inputs, GEMM_TILE_INPUTS)
        packed = PackedInt8Weight(
            inputs,
            outputs,
            torch.empty((blocks, padded_inputs // 4, self._lanes, 4), dtype=torch.int8),
            torch.empty(blocks * self._lanes),
            torch.empty(blocks * self._lanes, dtype=torch.int32),
        )
        self._run(self._pack_int8, rows, packed.weights, packed.scales, packed.zeros.data_ptr(), 0)
        return packed

    def pack_int4(self, weight: Tensor | WeightRows) -> PackedInt4Weight:
        """Packs with one scale for each `INT4_GROUP_INPUTS` inputs of an output, the best of four."""
        rows = _weight_rows(weight)
        outputs, inputs = rows.shape
        blocks, groups = self._count_blocks(outputs), round_up(inputs, INT4_GROUP_INPUTS) // INT4_GROUP_INPUTS
        packed = PackedInt4Weight(
            inputs,
            outputs,
            torch.empty((blocks, groups, 8, self._lanes, 4), dtype=torch.uint8),
            torch.empty(blocks * self._lanes),
            torch.empty((blocks, groups, self._lanes), dtype=torch.float16),
        )
        self._run(self._pack_int4, rows, packed.weights, packed.scales, 0, packed.group_scales.data_ptr())
        return packed

    def _count_blocks(self, outputs: int) -> int:
        return round_up(outputs, 2 * self._lanes) // self._lanes

    def _run(
        self, function: Any, rows: WeightRows, weights: Tensor, scales: Tensor, zeros: int, group_scales: int
    ) -> None:
        """Packs the rows, `OUTPUTS_PER_CALL` at a time."""
        addresses = rows.row_addresses()
        blocks_per_call = OUTPUTS_PER_CALL // self._lanes
        for first in range(0, len(weights), blocks_per_call):
            end = min(first + blocks_per_call, len(weights))
            args = PackArgs(
                addresses.data_ptr(),
                *rows.shape,
                DTYPE_CODES[rows.dtype],
                first,
                end,
                weights.data_ptr(),
                scales.data_ptr(),
                zeros,
                group_scales,
                count_threads(),
            )
            function(args)
            rows.release_rows(first * self._lanes, end * self._lanes)


def _weight_rows(weight: Tensor | WeightRows) -> WeightRows:
    """Returns the rows of a weight, in a type that `pack.c` reads."""
    rows = WeightRows.join([weight]) if isinstance(weight, Tensor) else weight
    if rows.dtype in DTYPE_CODES and all(part.dtype == rows.dtype for part in rows.parts):
        return rows
    return WeightRows.join([part.float() for part in rows.parts])
