"""Python bindings of the quantized matrix products: weights of 8 or 4 bits, activations of 8 bits."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from antiphon.engine.kernels.int4_layout import PackedInt4Weight
from antiphon.engine.kernels.int8_layout import GEMM_TILE_INPUTS, MAX_GEMM_INPUTS, PackedInt8Weight
from antiphon.engine.kernels.mxfp4_layout import PackedMxfp4Weight, allocate_mxfp4_weight
from antiphon.engine.kernels.native_calls import count_threads, int64_fields, load_function, read_constant
from antiphon.engine.kernels.pack import WeightPacker
from antiphon.engine.kernels.weight_rows import WeightRows

GEMM_TILE_ROWS = 16
"""Rows of a tile in `gemm.h`. Buffers for quantized rows hold whole tiles."""

KernelWeight = PackedInt8Weight | PackedInt4Weight | PackedMxfp4Weight


class LinearArgs(ctypes.Structure):
    """`struct linear_args` of `kernels.h`."""

    _fields_ = int64_fields("""
        x count inputs outputs weights scales zeros group_scales bias residual out levels row_scales silu_mul threads
        is_fp16
    """)


class Mxfp4PackArgs(ctypes.Structure):
    """`struct mxfp4_pack_args` of `mxfp4_gemm.c`."""

    _fields_ = int64_fields("blocks scales outputs groups weights group_scales threads")


class QuantizedLinearKernels:
    """Matrix products of a loaded library. Raises `AttributeError` if the library lacks one of them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.lanes = read_constant(library, "lanes")
        """Outputs of a block of packed weights."""
        self._packer = WeightPacker(library, self.lanes)
        self._linears: dict[type[KernelWeight], Any] = {
            PackedInt8Weight: load_function(library, "int8_linear", LinearArgs),
            PackedInt4Weight: load_function(library, "int4_linear", LinearArgs),
            PackedMxfp4Weight: load_function(library, "mxfp4_linear", LinearArgs),
        }
        self._pack_mxfp4 = load_function(library, "pack_mxfp4", Mxfp4PackArgs)

    def supports_weight(self, weight: Tensor | WeightRows) -> bool:
        """Tells whether a weight of this type and shape can be packed in 8 or 4 bits."""
        return weight.dtype.is_floating_point and 0 < weight.shape[1] <= MAX_GEMM_INPUTS

    def pack_int8_weight(self, weight: Tensor | WeightRows) -> PackedInt8Weight:
        """Quantizes a weight (outputs, inputs) to int8 and packs it for `multiply`."""
        return self._packer.pack_int8(weight)

    def pack_int4_weight(self, weight: Tensor | WeightRows) -> PackedInt4Weight:
        """Quantizes a weight (outputs, inputs) to 4 bits and packs it for `multiply`."""
        return self._packer.pack_int4(weight)

    def pack_mxfp4_blocks(self, blocks: Tensor, scales: Tensor) -> PackedMxfp4Weight:
        """Packs a weight in MXFP4, as it is in a checkpoint, for `multiply`."""
        (outputs, groups), blocks, scales = scales.shape, blocks.contiguous(), scales.contiguous()
        packed = allocate_mxfp4_weight(outputs, groups, self.lanes)
        args = (blocks.data_ptr(), scales.data_ptr(), outputs, groups, packed.weights.data_ptr())
        self._pack_mxfp4(Mxfp4PackArgs(*args, packed.group_scales.data_ptr(), count_threads()))
        return packed

    def multiply(self, x: Tensor, weight: KernelWeight, bias: Tensor | None = None, *, gated: bool = False) -> Tensor:
        """Linear layer (…, inputs) → (…, outputs). Quantizes each row to levels of its own maximum.

        For a weight in MXFP4, each 32 activations of a row have a maximum. A row of zeros gives the bias; a row with a
        non-finite element gives NaN. With `gated`, x is (…, 2 inputs), inputs satisfy `Kernels.is_row_aligned`, and the
        kernel applies `Kernels.silu_mul` to x in place first.
        """
        x = x.contiguous()
        count = x.numel() // x.shape[-1]
        out = x.new_empty((*x.shape[:-1], weight.outputs))
        tiles = -(-count // GEMM_TILE_ROWS)
        # Behind the levels of int4 lies an int32 for each row and step, behind those of MXFP4 four.
        step_bytes = GEMM_TILE_ROWS * (GEMM_TILE_INPUTS + 16)
        levels = torch.empty(tiles * weight.padded_inputs // GEMM_TILE_INPUTS * step_bytes, dtype=torch.uint8)
        row_scales = torch.empty(count)
        args = LinearArgs(
            x.data_ptr(),
            count,
            weight.inputs,
            weight.outputs,
            *weight_addresses(weight, bias),
            0,  # residual
            out.data_ptr(),
            levels.data_ptr(),
            row_scales.data_ptr(),
            gated,
            count_threads(),
        )
        self._linears[type(weight)](args)
        return out


def weight_addresses(weight: KernelWeight, bias: Tensor | None) -> tuple[int, int, int, int, int]:
    """Returns the addresses of the weights, scales, zeros, group scales and bias; 0 for what there is not."""
    if isinstance(weight, PackedInt4Weight | PackedMxfp4Weight):
        corrections = (0, weight.group_scales.data_ptr())
    else:
        corrections = (weight.zeros.data_ptr(), 0)
    bias_address = 0 if bias is None else bias.data_ptr()
    return (weight.weights.data_ptr(), weight.scales.data_ptr(), *corrections, bias_address)
