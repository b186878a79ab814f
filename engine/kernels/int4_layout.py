"""Packs a weight matrix in 4 bits in the memory layout that `int4_gemm.c` reads, and unpacks it."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.kernels.int8_layout import GEMM_TILE_INPUTS, MIN_SCALE, round_up

INT4_GROUP_INPUTS = GEMM_TILE_INPUTS
"""Consecutive inputs of an output that share a scale."""

WEIGHTS_PER_CHUNK = 1 << 19
"""Weights that are packed at a time. Packing needs several fp32 copies of them."""

INT4_MIN, INT4_MAX = -8, 7

SUMS_OF_A_GROUP = 16
"""Partial sums of the squared errors of a group; the same constant as in `pack.c`."""

SCALE_FACTORS = (1.0, 0.93, 0.86, 0.79)
"""Scales that are tried for a group, in proportion to the one at which its extreme becomes `INT4_MIN`.

A smaller one cuts the extreme and represents the others better. With these four, random weights of group 64 have a
relative error of 0.091; 0.095 with the first alone, and 0.108 with levels from -7 to 7.
"""


class PackedInt4Weight(NamedTuple):
    """Two weights in a byte (outputs / lanes, groups, 8, lanes, 4), and two scales: of each output, and of each group.

    Inputs and outputs are padded with zeros. A weight is its level times the scale of its group (fp16; outputs /
    lanes, groups, lanes) times the scale of its output (fp32), which keeps that of the group in the range of fp16.
    """

    inputs: int
    outputs: int
    weights: Tensor
    scales: Tensor
    group_scales: Tensor

    @property
    def padded_inputs(self) -> int:
        """Inputs of the packed weight."""
        return self.weights.shape[1] * INT4_GROUP_INPUTS


def pack_int4_weight(weight: Tensor, lanes: int) -> PackedInt4Weight:
    """Packs a weight (outputs, inputs) with one scale for each `INT4_GROUP_INPUTS` inputs of an output."""
    outputs, inputs = weight.shape
    padded_outputs, padded_inputs = round_up(outputs, 2 * lanes), round_up(inputs, INT4_GROUP_INPUTS)
    groups, blocks = padded_inputs // INT4_GROUP_INPUTS, padded_outputs // lanes
    weights = torch.empty((blocks, groups, 8, lanes, 4), dtype=torch.uint8)
    scales, group_scales = torch.empty(padded_outputs), torch.empty((blocks, groups, lanes), dtype=torch.float16)
    chunk_outputs = max(WEIGHTS_PER_CHUNK // padded_inputs // lanes, 1) * lanes
    for first in range(0, padded_outputs, chunk_outputs):
        end = min(first + chunk_outputs, padded_outputs)
        chunk = weight[first:end].float()
        chunk = functional.pad(chunk, (0, padded_inputs - inputs, 0, end - first - len(chunk)))
        scales[first:end] = chunk.abs().amax(1).clamp_min_(MIN_SCALE)
        values = (chunk / scales[first:end, None]).view(end - first, groups, INT4_GROUP_INPUTS)
        chosen = _choose_scales(values)
        levels = (_divide_into_levels(values, chosen) - INT4_MIN).to(torch.uint8)
        low, high = levels.view(-1, lanes, groups, 2, 8, 4).permute(3, 0, 2, 4, 1, 5)
        weights[first // lanes : end // lanes] = low | high << 4
        group_scales[first // lanes : end // lanes] = chosen.view(-1, lanes, groups).transpose(1, 2)
    return PackedInt4Weight(inputs, outputs, weights, scales, group_scales)


def unpack_int4_weight(packed: PackedInt4Weight) -> Tensor:
    """Returns the weight (outputs, inputs) that the packed one stands for, in fp32."""
    weight = torch.empty(len(packed.scales), packed.padded_inputs)
    for group in range(packed.weights.shape[1]):
        levels, scales = unpack_int4_group(packed, group)
        first = group * INT4_GROUP_INPUTS
        weight[:, first : first + INT4_GROUP_INPUTS] = levels.mul_((scales * packed.scales)[:, None])
    return weight[: packed.outputs, : packed.inputs]


def unpack_int4_outputs(packed: PackedInt4Weight, outputs: Tensor) -> Tensor:
    """Returns the rows of some outputs (their number, inputs), in fp32. Unpacks only the blocks that hold them."""
    lanes = packed.weights.shape[3]
    blocks, places = torch.unique(outputs // lanes, return_inverse=True)
    scales = packed.scales.view(-1, lanes)[blocks].flatten()
    part = PackedInt4Weight(packed.inputs, len(scales), packed.weights[blocks], scales, packed.group_scales[blocks])
    return unpack_int4_weight(part)[places * lanes + outputs % lanes]


def unpack_int4_group(packed: PackedInt4Weight, group: int) -> tuple[Tensor, Tensor]:
    """Returns the levels (padded outputs, inputs of a group) of one group, in fp32, and its scale for each output."""
    part = packed.weights[:, group]  # (blocks, 8, lanes, 4)
    levels = torch.stack([part & 15, part >> 4]).float() + INT4_MIN
    levels = levels.permute(1, 3, 0, 2, 4).reshape(len(packed.scales), INT4_GROUP_INPUTS)
    return levels, packed.group_scales[:, group].reshape(-1).float()


def _choose_scales(values: Tensor) -> Tensor:
    """Returns the scale (…, groups) of `SCALE_FACTORS` with the smallest squared error, in fp16."""
    extreme = values.gather(-1, values.abs().argmax(-1, keepdim=True)).squeeze(-1) / INT4_MIN
    best = smallest = None
    for factor in SCALE_FACTORS:
        scales = (extreme * factor).half()
        levels = _divide_into_levels(values, scales)
        error = _sum_in_order(levels.mul_(scales.float()[..., None]).sub_(values).square_())
        best = scales if best is None or smallest is None else torch.where(error < smallest, scales, best)
        smallest = error if smallest is None else torch.minimum(error, smallest)
    assert best is not None
    return best


def _sum_in_order(squares: Tensor) -> Tensor:
    """Returns the sums (…) of the last dimension, which is a group. They are added in the order of `pack.c`."""
    parts = squares.reshape(*squares.shape[:-1], -1, SUMS_OF_A_GROUP).unbind(-2)
    sums = parts[0].clone()
    for part in parts[1:]:
        sums.add_(part)
    total = sums[..., 0].clone()
    for index in range(1, SUMS_OF_A_GROUP):
        total.add_(sums[..., index])
    return total


def _divide_into_levels(values: Tensor, scales: Tensor) -> Tensor:
    """Returns the nearest levels; 0 where the scale is 0."""
    inverse = torch.where(scales == 0, 0.0, 1 / scales.float())
    return (values * inverse[..., None]).round_().clamp_(INT4_MIN, INT4_MAX)
