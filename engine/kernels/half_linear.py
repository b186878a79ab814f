"""Weights of 16 bits, bf16 or fp16: their memory layout and the Python binding of `half_gemm.c`."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from antiphon.engine.kernels.int8_layout import round_up
from antiphon.engine.kernels.native_calls import count_threads, load_function, read_constant
from antiphon.engine.kernels.quantized_linear import LinearArgs
from antiphon.engine.kernels.weight_rows import WeightRows

HALF_DTYPES = (torch.bfloat16, torch.float16)

STEP_INPUTS = 32
"""Inputs are padded to a multiple of this; the same constant as in `half_gemm.c`."""

ITEM_BLOCKS = 4
"""Outputs are padded to a multiple of this many blocks; the same constant as in `half_gemm.c`."""

OUTPUTS_PER_CHUNK = 1024
"""Outputs that are packed at a time; a multiple of the outputs of an item."""


class PackedHalfWeight(NamedTuple):
    """Weights as they are stored: bf16 (outputs / lanes, inputs / 2, lanes, 2), fp16 (outputs / lanes, inputs, lanes).

    Inputs and outputs are padded with zeros.
    """

    inputs: int
    outputs: int
    weights: Tensor

    @property
    def is_fp16(self) -> bool:
        """False for bf16."""
        return self.weights.dtype == torch.float16


def pack_half_weight(weight: Tensor | WeightRows, lanes: int) -> PackedHalfWeight:
    """Packs a weight (outputs, inputs) of one of `HALF_DTYPES`."""
    rows = WeightRows.join([weight]) if isinstance(weight, Tensor) else weight
    outputs, inputs = rows.shape
    padded_outputs, padded_inputs = round_up(outputs, ITEM_BLOCKS * lanes), round_up(inputs, STEP_INPUTS)
    # A pair of bf16 weights stays together, so it is moved as one integer.
    group, integer = (2, torch.int32) if rows.dtype == torch.bfloat16 else (1, torch.int16)
    packed = torch.empty((padded_outputs // lanes, padded_inputs // group, lanes), dtype=integer)
    for first in range(0, padded_outputs, OUTPUTS_PER_CHUNK):
        end = min(first + OUTPUTS_PER_CHUNK, padded_outputs)
        chunk = torch.zeros((end - first, padded_inputs), dtype=rows.dtype)
        _copy_rows(rows, first, end, chunk)
        packed[first // lanes : end // lanes] = chunk.view(integer).view(-1, lanes, packed.shape[1]).transpose(1, 2)
        rows.release_rows(first, end)
    weights = packed[..., None].view(rows.dtype)
    return PackedHalfWeight(inputs, outputs, weights if group == 2 else weights[..., 0])


def unpack_half_weight(packed: PackedHalfWeight) -> Tensor:
    """Returns the weight (outputs, inputs) in fp32."""
    weights = packed.weights[..., None] if packed.is_fp16 else packed.weights
    return weights.transpose(1, 2).flatten(2).flatten(0, 1)[: packed.outputs, : packed.inputs].float()


def _copy_rows(rows: WeightRows, first: int, end: int, to: Tensor) -> None:
    """Copies the rows from `first` to `end`, or to the last one."""
    at = 0
    for part in rows.parts:
        copied = part[max(first, 0) : max(end, 0)]
        to[at : at + len(copied), : part.shape[1]] = copied
        at += len(copied)
        first, end = first - len(part), end - len(part)


class HalfLinearKernel:
    """The product of a loaded library. Raises `AttributeError` if the library lacks it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._lanes = read_constant(library, "lanes")
        self._multiply = load_function(library, "half_linear", LinearArgs)
        self._workspace_bytes = load_function(library, "half_workspace", LinearArgs)
        self._workspace_bytes.restype = ctypes.c_int64

    def supports(self, weight: Tensor | WeightRows) -> bool:
        """Tells whether the kernel accepts a weight of this type and shape."""
        parts = [weight] if isinstance(weight, Tensor) else weight.parts
        return weight.dtype in HALF_DTYPES and weight.shape[1] > 0 and all(part.dtype == weight.dtype for part in parts)

    def pack(self, weight: Tensor | WeightRows) -> PackedHalfWeight:
        """Packs a weight (outputs, inputs) for `multiply`."""
        return pack_half_weight(weight, self._lanes)

    def multiply(
        self, x: Tensor, weight: PackedHalfWeight, bias: Tensor | None = None, *, gated: bool = False
    ) -> Tensor:
        """Linear layer (…, inputs) → (…, outputs) in fp32.

        With `gated`, x is (…, 2 inputs), inputs are a multiple of the lanes, and the kernel applies
        `Kernels.silu_mul` to x in place first.
        """
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], weight.outputs))
        args = LinearArgs(
            x=x.data_ptr(),
            count=x.numel() // x.shape[-1],
            inputs=weight.inputs,
            outputs=weight.outputs,
            weights=weight.weights.data_ptr(),
            bias=0 if bias is None else bias.data_ptr(),
            out=out.data_ptr(),
            silu_mul=gated,
            threads=count_threads(),
            is_fp16=weight.is_fp16,
        )
        workspace = torch.empty(self._workspace_bytes(args), dtype=torch.uint8)
        args.levels = workspace.data_ptr()
        self._multiply(args)
        return out
