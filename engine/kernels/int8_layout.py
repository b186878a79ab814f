"""Packs a weight matrix as int8 in the memory layout that `int8_gemm.c` reads."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

GEMM_TILE_INPUTS = 64
"""Inputs of a tile; the same constant as in `int8_gemm.c`."""

OUTPUTS_PER_CHUNK = 1024
"""Outputs that are packed at a time. Packing needs two fp32 copies of their weights."""

MAX_GEMM_INPUTS = 1 << 16
"""Largest number of inputs for which a sum of 8-bit products fits into 32 bits."""

ACTIVATION_LEVELS = 127
"""Largest magnitude of a quantized activation, on every CPU; the same constant as in `kernels.h`."""

UNSIGNED_ZERO = 128
"""Kernels that need unsigned levels of activations add it to them; the same constant as in `kernels.h`."""

MIN_SCALE = torch.finfo(torch.float32).tiny


class PackedInt8Weight(NamedTuple):
    """Int8 weights (outputs / lanes, inputs / 4, lanes, 4), and the scale of each output.

    Inputs and outputs are padded with zeros. `zeros` is the amount that `UNSIGNED_ZERO` adds to an output's sum.
    """

    inputs: int
    outputs: int
    weights: Tensor
    scales: Tensor
    zeros: Tensor

    @property
    def padded_inputs(self) -> int:
        """Inputs of the packed weight."""
        return self.weights.shape[1] * 4


def pack_int8_weight(weight: Tensor, lanes: int) -> PackedInt8Weight:
    """Packs a weight (outputs, inputs) with one scale per output."""
    outputs, inputs = weight.shape
    padded_outputs, padded_inputs = round_up(outputs, 2 * lanes), round_up(inputs, GEMM_TILE_INPUTS)
    weights = torch.empty((padded_outputs // lanes, padded_inputs // 4, lanes, 4), dtype=torch.int8)
    scales, zeros = torch.empty(padded_outputs), torch.empty(padded_outputs, dtype=torch.int32)
    for first in range(0, padded_outputs, OUTPUTS_PER_CHUNK):
        end = min(first + OUTPUTS_PER_CHUNK, padded_outputs)
        chunk = weight[first:end].float()
        chunk = functional.pad(chunk, (0, padded_inputs - inputs, 0, end - first - len(chunk)))
        scales[first:end] = (chunk.abs().amax(1) / 127).clamp_min_(MIN_SCALE)
        levels = (chunk / scales[first:end, None]).round_().clamp_(-127, 127).to(torch.int8)
        weights[first // lanes : end // lanes] = levels.view(-1, lanes, padded_inputs // 4, 4).transpose(1, 2)
        zeros[first:end] = levels.sum(1, dtype=torch.int32) * UNSIGNED_ZERO
    return PackedInt8Weight(inputs, outputs, weights, scales, zeros)


def round_up(count: int, multiple: int) -> int:
    """Returns the smallest multiple that is at least `count`."""
    return -(-count // multiple) * multiple
