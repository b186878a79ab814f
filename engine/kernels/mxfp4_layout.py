"""Packs a weight matrix in MXFP4 in the memory layout that `mxfp4_gemm.c` reads, and unpacks it.

MXFP4 is the format of the Open Compute Project's "Microscaling Formats" specification: 32 numbers of 4 bits (E2M1) that
share a power of two of 8 bits (E8M0).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.kernels.int8_layout import GEMM_TILE_INPUTS, round_up

MXFP4_GROUP_INPUTS = 32
"""Consecutive inputs of an output that share a scale."""

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Numbers by their code of 4 bits."""

E8M0_BIAS = 127
"""Stored exponent of the scale 1."""

E2M1_MAX_EXPONENT = 2
"""Exponent of the largest E2M1 number, 6 = 1.5 · 2²."""

E2M1_ROUNDING_BORDERS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Magnitudes between two E2M1 numbers, from which the larger one is nearer."""

LEVEL_SCALE = 0.5
"""Value of one level: the kernel multiplies by doubled E2M1 numbers, which are integers."""


class PackedMxfp4Weight(NamedTuple):
    """Two codes in a byte (outputs / lanes, inputs / 64, 8, lanes, 4), and a scale for each group.

    `group_scales` are E8M0 bytes (outputs / lanes, inputs / 32, lanes), `scales` is `LEVEL_SCALE` for each
    output. Inputs and outputs are padded with zeros.
    """

    inputs: int
    outputs: int
    weights: Tensor
    scales: Tensor
    group_scales: Tensor

    @property
    def padded_inputs(self) -> int:
        """Inputs of the packed weight."""
        return self.weights.shape[1] * GEMM_TILE_INPUTS


def allocate_mxfp4_weight(outputs: int, groups: int, lanes: int) -> PackedMxfp4Weight:
    """Returns a packed weight for this many outputs and groups of inputs, with arbitrary weights."""
    padded_outputs, padded_groups = round_up(outputs, 2 * lanes), round_up(groups, 2)
    return PackedMxfp4Weight(
        groups * MXFP4_GROUP_INPUTS,
        outputs,
        torch.empty((padded_outputs // lanes, padded_groups // 2, 8, lanes, 4), dtype=torch.uint8),
        torch.full((padded_outputs,), LEVEL_SCALE),
        torch.empty((padded_outputs // lanes, padded_groups, lanes), dtype=torch.uint8),
    )


def pack_mxfp4_blocks(blocks: Tensor, scales: Tensor, lanes: int) -> PackedMxfp4Weight:
    """Packs a weight from a checkpoint's blocks (outputs, groups, 16) and scales (outputs, groups), both bytes.

    The low half of a byte is the code of the earlier input. No weight is changed.
    """
    outputs, groups = scales.shape
    padded_outputs, padded_groups = round_up(outputs, 2 * lanes), round_up(groups, 2)
    padding = (0, padded_groups - groups, 0, padded_outputs - outputs)
    scales = functional.pad(scales, padding)
    if padding[1] or padding[3]:
        blocks = functional.pad(blocks, (0, 0, *padding))
    # Four codes of two bytes become the low halves of four bytes, which are then moved as one integer.
    codes = blocks.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    codes = (codes | codes << 8) & 0x00FF00FF
    codes = (codes | codes << 4) & 0x0F0F0F0F
    codes = codes.view(padded_outputs // lanes, lanes, padded_groups // 2, 2, 8)
    packed = (codes[:, :, :, 0] | codes[:, :, :, 1] << 4).permute(0, 2, 3, 1).contiguous()
    group_scales = scales.view(padded_outputs // lanes, lanes, padded_groups).transpose(1, 2).contiguous()
    weights = packed.view(torch.uint8).view(*packed.shape, 4)
    inputs = groups * MXFP4_GROUP_INPUTS
    return PackedMxfp4Weight(inputs, outputs, weights, torch.full((padded_outputs,), LEVEL_SCALE), group_scales)


def unpack_mxfp4_levels(packed: PackedMxfp4Weight) -> tuple[Tensor, Tensor]:
    """Returns the levels (padded outputs, padded inputs), doubled E2M1 numbers, and the group scales, in fp32."""
    table = torch.tensor(E2M1_VALUES) / LEVEL_SCALE
    codes = torch.stack([packed.weights & 15, packed.weights >> 4])  # (2, blocks, steps, 8, lanes, 4)
    levels = table[codes.permute(1, 4, 2, 0, 3, 5).int()].reshape(len(packed.scales), packed.padded_inputs)
    exponents = packed.group_scales.transpose(1, 2).reshape(len(packed.scales), -1).int() - E8M0_BIAS
    return levels, torch.ldexp(torch.ones(exponents.shape), exponents)


def quantize_to_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a weight (…, inputs) as blocks (…, groups, 16) and scales (…, groups), rounded to the nearest numbers.

    The scale is the specification's: the power of two of the group's largest weight, less that of the largest E2M1
    number. Inputs must be whole groups.
    """
    values = weight.float().reshape(*weight.shape[:-1], -1, MXFP4_GROUP_INPUTS)
    _, exponents = torch.frexp(values.abs().amax(-1))
    exponents = (exponents - 1 - E2M1_MAX_EXPONENT).clamp_(-E8M0_BIAS, E8M0_BIAS)
    values = torch.ldexp(values, -exponents[..., None])
    codes = torch.bucketize(values.abs(), torch.tensor(E2M1_ROUNDING_BORDERS), right=True).to(torch.uint8)
    codes |= (values < 0).to(torch.uint8) << 3
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponents + E8M0_BIAS).to(torch.uint8)
