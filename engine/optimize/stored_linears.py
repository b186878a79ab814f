"""Linear layers that compute with the whole numbers of a quantized checkpoint, exactly as they are stored.

Nothing is rounded again: the packed layouts hold the levels, and scales that stand for the stored ones. Only scales in
fp32 of several groups are rounded, to fp16.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.engine.checkpoint.quantized.quantized_weight import GroupedLevels
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.int4_layout import INT4_GROUP_INPUTS, INT4_MIN, PackedInt4Weight
from antiphon.engine.kernels.int8_layout import GEMM_TILE_INPUTS, UNSIGNED_ZERO, PackedInt8Weight, round_up
from antiphon.engine.load.mmap_weights import MmapLinear, QuantizedMmapWeight
from antiphon.engine.optimize.linears import (
    INT8_MAX_RELATIVE_ERROR,
    MIN_SCALE,
    CompiledLinear,
    LinearKernel,
    MergedLinearSlice,
    OneDnnLinear,
    PackedLinear,
)
from antiphon.engine.optimize.torch_int4_linear import TORCH_INT4_LANES, TorchInt4Linear
from antiphon.engine.optimize.verification import verify_linear
from antiphon.engine.options import Quantization

INT4_BITS = 4
"""Largest number of bits of levels that the int4 layout holds."""

STORED_BYTES_PER_WEIGHT = {"int4": 4.25 / 8, "int8": 1.0, "fp32": 4.0}


def build_stored_linear(
    layers: Sequence[nn.Linear], kernels: Kernels | None, form: Quantization | None
) -> LinearKernel | None:
    """Returns a layer with the stored levels of all layers, one below the other.

    None if the `form` is another one, if it cannot hold these levels, or if this machine has no kernel for them.
    Raises `UnusableKernelError` if the kernel's results differ.
    """
    if form is None:
        return None
    levels = _read_levels(layers)
    stored_form = None if levels is None else _find_form(levels)
    if levels is None or stored_form is None or form not in {stored_form, "stored"}:
        return None
    present = [layer.bias.detach() for layer in layers if layer._parameters["bias"] is not None]
    bias = torch.cat(present) if present else None
    kernel = _build_kernel(levels, bias, kernels, stored_form)
    if kernel is None:
        return None
    if levels.zeros is not None or levels.input_order is not None:
        kernel = CorrectedLinear(kernel, levels)
    verify_linear(kernel, levels.dequantize(), bias, INT8_MAX_RELATIVE_ERROR)
    return kernel


def _read_levels(layers: Sequence[nn.Linear]) -> GroupedLevels | None:
    """Returns the stored levels of all layers; None if one has none, or if they differ in their groups."""
    parts: list[GroupedLevels] = []
    for layer in layers:
        mapped = layer.mapped if isinstance(layer, MmapLinear) else None
        levels = mapped.read_levels() if isinstance(mapped, QuantizedMmapWeight) else None
        if levels is None:
            return None
        parts.append(levels)
    return _join_levels(parts)


def _find_form(levels: GroupedLevels) -> Quantization | None:
    """Returns the form that can hold the levels; None if none can."""
    has_one_group = levels.scales.shape[1] == 1
    if levels.bits <= INT4_BITS and (has_one_group or levels.group_inputs % INT4_GROUP_INPUTS == 0):
        return "int4"
    return "int8" if has_one_group else None


def _build_kernel(
    levels: GroupedLevels, bias: Tensor | None, kernels: Kernels | None, form: Quantization
) -> LinearKernel | None:
    """Returns a layer that multiplies by the levels and scales, without zero points; None without a kernel."""
    if form == "int4" and kernels is None:
        return TorchInt4Linear(pack_int4_levels(levels, TORCH_INT4_LANES), bias)
    if kernels is None:
        return None
    if form == "int4":
        return CompiledLinear(pack_int4_levels(levels, kernels.lanes), bias, kernels)
    return CompiledLinear(pack_int8_levels(levels, kernels.lanes), bias, kernels)


def _join_levels(parts: Sequence[GroupedLevels]) -> GroupedLevels | None:
    """Returns the levels of layers with the same inputs, one below the other; None if their groups differ."""
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        orders = [each.input_order for each in (first, part) if each.input_order is not None]
        if len(orders) == 1 or (orders and not torch.equal(*orders)):
            return None
        if part.scales.shape[1] != first.scales.shape[1]:
            return None
    zeros = None
    if any(part.zeros is not None for part in parts):
        zeros = torch.cat([torch.zeros_like(part.scales) if part.zeros is None else part.zeros for part in parts])
    return GroupedLevels(
        max(part.bits for part in parts),
        torch.cat([part.levels for part in parts]),
        torch.cat([part.scales for part in parts]),
        zeros,
        first.input_order,
    )


class CorrectedLinear:
    """A layer whose levels have zero points, or whose inputs are in another order than those of the model.

    The kernel multiplies by `scales · levels`. Zero points take from this `scales · zeros` times the sum of the
    inputs of each group.
    """

    def __init__(self, kernel: LinearKernel, levels: GroupedLevels) -> None:
        self.kernel, self._order = kernel, levels.input_order
        self._group_inputs = levels.group_inputs
        self._zeros = None if levels.zeros is None else OneDnnLinear(levels.scales * -levels.zeros, None)

    def __call__(self, x: Tensor) -> Tensor:
        """Implements `LinearKernel`."""
        if self._order is not None:
            x = x.index_select(-1, self._order)
        product = self.kernel(x)
        if self._zeros is None:
            return product
        sums = x.reshape(*x.shape[:-1], -1, self._group_inputs).sum(-1)
        return product.add_(self._zeros(sums))


def pack_int4_levels(levels: GroupedLevels, lanes: int) -> PackedInt4Weight:
    """Packs levels of at most 4 bits. The scale of an output is a power of two, or that of its only group."""
    outputs, inputs = levels.levels.shape
    padded_outputs, padded_inputs = round_up(outputs, 2 * lanes), round_up(inputs, INT4_GROUP_INPUTS)
    groups, blocks = padded_inputs // INT4_GROUP_INPUTS, padded_outputs // lanes
    padding = (0, padded_inputs - inputs, 0, padded_outputs - outputs)
    numbers = (functional.pad(levels.levels, padding) - INT4_MIN).view(torch.uint8)
    low, high = numbers.view(blocks, lanes, groups, 2, 8, 4).permute(3, 0, 2, 4, 1, 5)
    scales = levels.scales.repeat_interleave(-(-groups // levels.scales.shape[1]), 1)
    if levels.scales.shape[1] == 1:
        of_output = scales[:, 0].clone()
        of_group = torch.ones_like(scales)
    else:
        largest = scales.amax(1).clamp_min(MIN_SCALE)
        of_output = largest.log2().ceil().exp2()
        of_group = scales / of_output[:, None]
    of_output = functional.pad(of_output, (0, padded_outputs - outputs), value=MIN_SCALE)
    of_group = functional.pad(of_group.half(), (0, 0, 0, padded_outputs - outputs))
    of_group = of_group.view(blocks, lanes, groups).transpose(1, 2).contiguous()
    return PackedInt4Weight(inputs, outputs, (low | high << 4).contiguous(), of_output, of_group)


def pack_int8_levels(levels: GroupedLevels, lanes: int) -> PackedInt8Weight:
    """Packs levels of 8 bits with one scale for each output."""
    outputs, inputs = levels.levels.shape
    padded_outputs, padded_inputs = round_up(outputs, 2 * lanes), round_up(inputs, GEMM_TILE_INPUTS)
    numbers = functional.pad(levels.levels, (0, padded_inputs - inputs, 0, padded_outputs - outputs))
    weights = numbers.view(-1, lanes, padded_inputs // 4, 4).transpose(1, 2).contiguous()
    scales = functional.pad(levels.scales[:, 0], (0, padded_outputs - outputs), value=MIN_SCALE)
    zeros = numbers.sum(1, dtype=torch.int32) * UNSIGNED_ZERO
    return PackedInt8Weight(inputs, outputs, weights, scales.contiguous(), zeros)


def describe_forms(model: nn.Module) -> str:
    """Returns how many matrices of a packed model have which form, and the memory that they take."""
    modules = (module.merged.linear if isinstance(module, MergedLinearSlice) else module for module in model.modules())
    linears = {id(module): module for module in modules if isinstance(module, PackedLinear)}.values()
    counts: dict[str, int] = {}
    size = 0.0
    for linear in linears:
        form = _name_form(linear.kernel)
        counts[form] = counts.get(form, 0) + 1
        size += STORED_BYTES_PER_WEIGHT[form] * linear.in_features * linear.out_features
    parts = [f"{counts[form]} matrices in {form}" for form in STORED_BYTES_PER_WEIGHT if form in counts]
    return f"{', '.join(parts)} ({size / 1e6:.0f} MB)"


def _name_form(kernel: LinearKernel) -> str:
    """Returns the form of a packed layer's weight."""
    if isinstance(kernel, CorrectedLinear):
        kernel = kernel.kernel
    if isinstance(kernel, OneDnnLinear):
        return "fp32"
    is_int4 = isinstance(kernel, TorchInt4Linear) or (
        isinstance(kernel, CompiledLinear) and isinstance(kernel.packed, PackedInt4Weight)
    )
    return "int4" if is_int4 else "int8"
