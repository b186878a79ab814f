"""A matrix in int8, laid out as the kernels of ``products.c`` read it."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

GEMM_TILE_INPUTS = 64
"""Inputs of a tile, as there."""

OUTPUTS_PER_CHUNK = 4096
"""Outputs that are laid out at once: each needs its weights twice in fp32 meanwhile."""

MAX_GEMM_INPUTS = 1 << 16
"""Sums of so many products of 8 bits each hold 32."""

MIN_SCALE = torch.finfo(torch.float32).tiny


class PackedInt8Weight(NamedTuple):
    """Weights (outputs / lanes, inputs / 4, lanes, 4), and for each output what one of them is worth.

    Inputs and outputs are filled up with zeros. ``zeros`` is what the activations' zero adds to an output's sum.
    """

    inputs: int
    outputs: int
    weights: Tensor
    scales: Tensor
    zeros: Tensor


def pack_int8_weight(weight: Tensor, lanes: int, zero: int) -> PackedInt8Weight:
    """A weight (outputs, inputs) with one scale for each output; ``zero`` is the activations' zero."""
    outputs, inputs = weight.shape
    tall, wide = _round_up(outputs, 2 * lanes), _round_up(inputs, GEMM_TILE_INPUTS)
    weights = torch.empty((tall // lanes, wide // 4, lanes, 4), dtype=torch.int8)
    scales, zeros = torch.empty(tall), torch.empty(tall, dtype=torch.int32)
    for first in range(0, tall, OUTPUTS_PER_CHUNK):
        end = min(first + OUTPUTS_PER_CHUNK, tall)
        part = weight[first:end]
        part = functional.pad(part, (0, wide - inputs, 0, end - first - len(part)))
        scales[first:end] = (part.abs().amax(1) / 127).clamp_min_(MIN_SCALE)
        levels = (part / scales[first:end, None]).round_().clamp_(-127, 127).to(torch.int8)
        weights[first // lanes : end // lanes] = levels.view(-1, lanes, wide // 4, 4).transpose(1, 2)
        zeros[first:end] = levels.sum(1, dtype=torch.int32) * zero
    return PackedInt8Weight(inputs, outputs, weights, scales, zeros)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
