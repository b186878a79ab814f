"""Products with packed weights: by the compiled kernels, or by torch where there is no compiler."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.forward.experts.matrix import ExpertForm, PackedExpertWeight
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.half_linear import PackedHalfWeight, unpack_half_weight
from antiphon.engine.kernels.int4_layout import INT4_GROUP_INPUTS, PackedInt4Weight, unpack_int4_group
from antiphon.engine.kernels.int8_layout import ACTIVATION_LEVELS, PackedInt8Weight
from antiphon.engine.kernels.mxfp4_layout import LEVEL_SCALE, PackedMxfp4Weight, unpack_mxfp4_levels
from antiphon.engine.kernels.quantized_linear import KernelWeight

Multiply = Callable[[Tensor, Any, Tensor | None], Tensor]
"""Multiplies rows (n, inputs) by a packed weight and adds a bias, or None."""

TORCH_LANES = 8
"""Outputs of a block of weights that torch multiplies."""


def choose_multiply(form: ExpertForm, kernels: Kernels | None) -> Multiply:
    """Returns the product with weights of this form."""
    if kernels is None:
        return multiply_by_torch
    return kernels.half.multiply if form in {"bfloat16", "float16"} else kernels.multiply


def multiply_by_torch(x: Tensor, packed: KernelWeight, bias: Tensor | None) -> Tensor:
    """Product by torch: slow, with the same memory, and with rows that do not depend on each other.

    Products of levels are whole numbers, which fp64 adds exactly in any order.
    """
    levels, scales = unpack_levels(packed)
    groups = scales.shape[1]
    group_inputs = packed.padded_inputs // groups
    rows = functional.pad(x, (0, packed.padded_inputs - packed.inputs))
    grouped = rows.view(len(x), groups, group_inputs)
    maxima = (grouped if isinstance(packed, PackedMxfp4Weight) else rows[:, None]).abs().amax(-1, keepdim=True)
    row_levels = (
        (grouped * (ACTIVATION_LEVELS / maxima)).round_().nan_to_num_(0.0, ACTIVATION_LEVELS, -ACTIVATION_LEVELS)
    )
    row_scales = (maxima / ACTIVATION_LEVELS).expand(-1, groups, 1)
    result = x.new_zeros(len(x), len(levels))
    for group in range(groups):
        weight = levels[:, group * group_inputs : (group + 1) * group_inputs].double()
        sums = row_levels[:, group].double().mm(weight.T).float()
        result.add_(sums.mul_(scales[:, group]).mul_(row_scales[:, group]))
    product = result[:, : packed.outputs]
    return product if bias is None else product + bias


def unpack_levels(packed: KernelWeight) -> tuple[Tensor, Tensor]:
    """Returns the levels (padded outputs, padded inputs) and the scale of each group (padded outputs, groups)."""
    if isinstance(packed, PackedInt8Weight):
        blocks, quads, lanes, four = packed.weights.shape
        levels = packed.weights.transpose(1, 2).reshape(blocks * lanes, quads * four)
        return levels.float(), packed.scales[:, None]
    if isinstance(packed, PackedInt4Weight):
        parts = [unpack_int4_group(packed, group) for group in range(packed.padded_inputs // INT4_GROUP_INPUTS)]
        scales = torch.stack([scales for _, scales in parts], 1) * packed.scales[:, None]
        return torch.cat([levels for levels, _ in parts], 1), scales
    levels, scales = unpack_mxfp4_levels(packed)
    return levels, scales * LEVEL_SCALE


def unpack_weight(packed: PackedExpertWeight) -> Tensor:
    """Returns the weight (outputs, inputs) that the packed one stands for, in fp32."""
    if isinstance(packed, PackedHalfWeight):
        return unpack_half_weight(packed)
    levels, scales = unpack_levels(packed)
    weight = levels.view(len(levels), scales.shape[1], -1) * scales[..., None]
    return weight.view(len(levels), -1)[: packed.outputs, : packed.inputs]
