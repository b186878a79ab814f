"""Linear layers for a CPU: weights packed once for the machine's kernels, in fp32, 16 bits, int8 or int4.

In each form a row's bits do not depend on the other rows. This module handles no models:
`engine/optimize/pack_linears.py` replaces a model's own layers by these.
"""

import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.half_linear import PackedHalfWeight
from antiphon.engine.kernels.int4_layout import PackedInt4Weight
from antiphon.engine.kernels.int8_layout import PackedInt8Weight
from antiphon.engine.kernels.quantized_linear import KernelWeight, weight_addresses
from antiphon.engine.kernels.weight_rows import WeightRows
from antiphon.engine.optimize.torch_int4_linear import TorchInt4Linear
from antiphon.engine.optimize.verification import (
    KNOWN_SHAPE_ROW_COUNTS,
    LINEAR_PROBE_ROW_COUNTS,
    PROBE_BATCH_ROWS,
    UnusableKernelError,
    probe_rows,
    verify_kernel,
    verify_linear,
)

log = logging.getLogger(__name__)

LAYOUT_BATCH_ROWS = 64
"""Number of rows for which oneDNN chooses the weight's layout. A layout for one row selects a different kernel."""

MIN_SCALE = torch.finfo(torch.float32).tiny
HALF_MAX_RELATIVE_ERROR = 1e-5
"""Largest relative error of a layer with 16-bit weights, to a product in fp32."""
INT8_MAX_RELATIVE_ERROR = 0.05
"""Largest relative error of an int8 layer. Random weights give 0.01, so a larger error means a defective kernel."""
INT4_MAX_RELATIVE_ERROR = 0.5
"""Largest relative error of an int4 layer. Random weights give 0.09, a group with one large weight up to 0.45."""


LinearKernel = Callable[[Tensor], Tensor]
"""Linear layer: x (…, inputs) → x · weightᵀ + bias (…, outputs). It does not write to x."""


class OneDnnLinear:
    """An fp32 weight in oneDNN's layout.

    oneDNN may add in another order if there is only one row. Where it does, a single row is computed twice, as a batch
    of two, so that its bits are the same as in a batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), LAYOUT_BATCH_ROWS)
        self._bias = bias
        self._doubles_single_row = False
        x = probe_rows(PROBE_BATCH_ROWS, weight.shape[1])
        batched = self(x)
        self._doubles_single_row = not torch.equal(self(x[:1]), batched[:1])
        if self._doubles_single_row:
            report_fallback(log, "single_rows", "single rows of layers in fp32 are computed twice, for equal bits")
        verify_kernel(self, x, functional.linear(x, weight, bias), 1e-3)

    def __call__(self, x: Tensor) -> Tensor:
        """Implements `LinearKernel`."""
        multiply = torch.ops.mkldnn._linear_pointwise
        if self._doubles_single_row and x.numel() == x.shape[-1]:
            doubled = x.reshape(1, -1).expand(2, -1).contiguous()
            product: Tensor = multiply(doubled, self._packed, self._bias, "none", [], "")[:1]
            return product.view(*x.shape[:-1], -1)
        result: Tensor = multiply(x, self._packed, self._bias, "none", [], "")
        return result


class FbgemmInt8Linear:
    """Int8 by torch's fbgemm kernel: weights with one scale per output, activations with one scale per row.

    torch's dynamic kernel uses one scale for the whole batch, which would make a row depend on the other rows. So each
    row is divided by its largest magnitude first, and the kernel's scale is a constant. A row of zeros gives zeros: 0/0
    is NaN, which the kernel quantizes to some finite number, and the result is multiplied by 0. A row with infinities
    or NaN gives non-finite results.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # Without VNNI the kernel adds pairs of products in 16 bits, which 8 x 8 bits overflow.
        self._levels = 127 if torch.cpu._is_vnni_supported() else 63
        self._packed = _prepack_int8(weight)
        # The overload itself: torch.ops would check each argument first, which takes as long as a small layer.
        self._multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default._op
        self._bias = bias
        verify_linear(self, weight, bias, INT8_MAX_RELATIVE_ERROR)

    def __call__(self, x: Tensor) -> Tensor:
        """Implements `LinearKernel`."""
        # Equal to the infinity norm, which takes five times as long.
        row_max = x.abs().amax(-1, keepdim=True)
        levels = self._levels
        product: Tensor = self._multiply(x / row_max, 1 / levels, levels + 1, self._packed)
        product.mul_(row_max)
        return product if self._bias is None else product.add_(self._bias)


class CompiledLinear:
    """Packed weights multiplied by the compiled kernels, in one call."""

    def __init__(self, packed: KernelWeight | PackedHalfWeight, bias: Tensor | None, kernels: Kernels) -> None:
        self.packed, self.inputs = packed, packed.inputs
        self._multiply: Any = kernels.half.multiply if isinstance(packed, PackedHalfWeight) else kernels.multiply
        self._bias = None if bias is None else bias.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """Implements `LinearKernel`."""
        product: Tensor = self._multiply(x, self.packed, self._bias)
        return product

    @property
    def fields(self) -> tuple[int, ...]:
        """Fields of `struct packed_weight` in `decoder_layer.c`."""
        if not isinstance(self.packed, PackedHalfWeight):
            return (*weight_addresses(self.packed, self._bias), 0)
        bias_address = 0 if self._bias is None else self._bias.data_ptr()
        return (self.packed.weights.data_ptr(), 0, 0, 0, bias_address, int(self.packed.is_fp16))

    def linear_after_silu_mul(self, x: Tensor) -> Tensor:
        """Applies the layer to `silu(x[..., :n]) * x[..., n:]` for x (…, 2n). Overwrites x."""
        product: Tensor = self._multiply(x, self.packed, self._bias, gated=True)
        return product


def build_exact_linear(weight: WeightRows, bias: Tensor | None, kernels: Kernels | None) -> LinearKernel:
    """Returns a layer with the error of fp32. Its weights stay in 16 bits if they are and compiled kernels exist.

    Raises `UnusableKernelError`.
    """
    if kernels is not None and kernels.half.supports(weight):
        compiled = _build_compiled_linear(kernels.half.pack(weight), weight, bias, kernels)
        if compiled is not None:
            return compiled
    return OneDnnLinear(weight.to_fp32(), bias)


def build_int8_linear(
    weight: Tensor | WeightRows, bias: Tensor | None, kernels: Kernels | None, packed: PackedInt8Weight | None = None
) -> LinearKernel:
    """Returns a layer with compiled kernels if these support it, otherwise with fbgemm. `packed` saves packing.

    Raises `UnusableKernelError`, or torch's error where fbgemm is missing.
    """
    if kernels is not None and kernels.supports_weight(weight):
        compiled = _build_compiled_linear(packed or kernels.pack_int8_weight(weight), weight, bias, kernels)
        if compiled is not None:
            return compiled
    return FbgemmInt8Linear(weight.float() if isinstance(weight, Tensor) else weight.to_fp32(), bias)


def build_int4_linear(
    weight: Tensor | WeightRows, bias: Tensor | None, kernels: Kernels | None, packed: PackedInt4Weight | None = None
) -> LinearKernel:
    """Returns a layer with compiled kernels if these support it, otherwise with torch. `packed` saves packing.

    Raises `UnusableKernelError`. A kernel is compared with the rounded weight: how far that is from the
    original depends on the weight, and shows in the model's logits.
    """
    if kernels is not None and kernels.supports_weight(weight):
        packed = packed or kernels.pack_int4_weight(weight)
        compiled = _build_compiled_linear(packed, packed, bias, kernels)
        if compiled is not None:
            return compiled
    layer = TorchInt4Linear(weight if isinstance(weight, Tensor) else weight.to_fp32(), bias)
    verify_linear(layer, weight, bias, INT4_MAX_RELATIVE_ERROR)
    return layer


def _build_compiled_linear(
    packed: KernelWeight | PackedHalfWeight,
    weight: Tensor | WeightRows | PackedInt4Weight,
    bias: Tensor | None,
    kernels: Kernels,
) -> CompiledLinear | None:
    """Returns a layer of compiled kernels, compared with `weight`; None, with a warning, if its results differ."""
    compiled = CompiledLinear(packed, bias, kernels)
    max_error = HALF_MAX_RELATIVE_ERROR if isinstance(packed, PackedHalfWeight) else INT8_MAX_RELATIVE_ERROR
    shape = (type(packed).__name__, packed.outputs, packed.inputs, bias is None)
    row_counts = KNOWN_SHAPE_ROW_COUNTS if shape in kernels.verified_shapes else LINEAR_PROBE_ROW_COUNTS
    try:
        verify_linear(compiled, weight, bias, max_error, row_counts)
        kernels.verified_shapes.add(shape)
    except UnusableKernelError as failure:
        form = {PackedHalfWeight: "16-bit", PackedInt8Weight: "int8"}.get(type(packed), "int4")
        report_fallback(log, "linear_kernel", "the compiled %s kernel is not used: %s", form, failure)
        return None
    return compiled


class PackedLinear(nn.Module):
    """Replaces a `torch.nn.Linear`; a kernel computes it."""

    def __init__(self, kernel: LinearKernel, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        if not x.numel():
            return x.new_empty((*x.shape[:-1], self.out_features))
        return self.kernel(x)


class MergedLinear:
    """Several linear layers that are called with the same tensor: the first call computes them all.

    The input is kept until every layer has taken its slice. It is recognized by identity, so the caller must make sure
    that nothing writes to it between these calls.
    """

    def __init__(self, linear: PackedLinear, sizes: list[int]) -> None:
        self.linear = linear
        self._sizes = sizes
        self._input: Tensor | None = None
        self._parts: list[Tensor | None] = []

    def take_slice(self, x: Tensor, index: int) -> Tensor:
        """Returns the slice of the layer with index `index`, a view into the merged product."""
        if x is not self._input or self._parts[index] is None:
            self._input, self._parts = x, list(self.linear(x).split(self._sizes, -1))
        part, self._parts[index] = self._parts[index], None
        if not any(other is not None for other in self._parts):
            self._input = None
        assert part is not None
        return part


class MergedLinearSlice(nn.Module):
    """Replaces a `torch.nn.Linear` that is part of a `MergedLinear`."""

    def __init__(self, merged: MergedLinear, index: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.merged = merged
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        return self.merged.take_slice(x, self.index)


def _prepack_int8(weight: Tensor) -> Any:
    """Quantizes and packs a weight by fbgemm, torch's only quantized engine with a kernel for fp32 activations."""
    scales = (weight.abs().amax(1) / 127).clamp_min(MIN_SCALE).double()
    zeros = torch.zeros(len(weight), dtype=torch.long)
    previous_engine = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "fbgemm"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the tensor class is deprecated, but the kernel needs it
            quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            return torch.ops.quantized.linear_prepack(quantized, None)
    finally:
        torch.backends.quantized.engine = previous_engine
