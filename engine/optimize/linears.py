"""Linear layers for a CPU: weights laid out once for the machine's kernels, in fp32 or in int8.

Both give every row the same bits whether it comes alone or among others. It knows no models;
:mod:`engine.optimize.pack_linears` puts these modules in the places of a model's own.
"""

import logging
import warnings
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.engine.kernels.bindings import Kernels

log = logging.getLogger(__name__)

LAYOUT_BATCH_ROWS = 64
"""For how many rows oneDNN is asked to lay a weight out. A layout for one row is another kernel for one row."""

PROBE_ROW_COUNTS = (1, 2, 5, 16, 33)
"""Numbers of rows that a packed weight is tried with."""

MIN_SCALE = torch.finfo(torch.float32).tiny
INT8_MAX_RELATIVE_ERROR = 0.05
"""The relative error up to which an int8 weight counts as computed as meant; random weights give 0.01."""


class UnusableKernelError(Exception):
    """A kernel is missing here or computes something else."""


class LinearKernel(Protocol):
    """x (…, inputs) → x · weightᵀ + bias, (…, outputs)."""

    def __call__(self, x: Tensor) -> Tensor:
        """The product; what ``x`` holds is not written to."""
        ...


class OneDnnLinear:
    """oneDNN's own layout of an fp32 weight. The kernel for one long row adds in another order, so it gets a twin."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), LAYOUT_BATCH_ROWS)
        self._bias = bias
        self._twin = False
        x = _probe_rows(PROBE_ROW_COUNTS[-1], weight)
        together = self(x)
        self._twin = not torch.equal(self(x[:1]), together[:1])
        _verify_kernel(self, x, functional.linear(x, weight, bias), 1e-3)

    def __call__(self, x: Tensor) -> Tensor:
        """See :class:`Kernel`."""
        multiply = torch.ops.mkldnn._linear_pointwise
        if self._twin and x.numel() == x.shape[-1]:
            twins = x.reshape(1, -1).expand(2, -1).contiguous()
            product: Tensor = multiply(twins, self._packed, self._bias, "none", [], "")[:1]
            return product.view(*x.shape[:-1], -1)
        result: Tensor = multiply(x, self._packed, self._bias, "none", [], "")
        return result


class FbgemmInt8Linear:
    """Weights with one scale per output, activations with one per row: its own largest magnitude.

    torch's dynamic kernel takes one scale for the whole batch, and so lets a row depend on its neighbours. Here each
    row is brought to [-1, 1] first, and the kernel's scale is a constant. A row of zeros stays one, since the kernel
    makes some number of none, and 0 of it is 0; a row that holds infinities or no numbers gives no usable number.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # Without VNNI the kernel adds pairs of products in 16 bits, which 8 x 8 bits overflow.
        self._levels = 127 if torch.cpu._is_vnni_supported() else 63
        self._packed = _prepack_int8(weight)
        # As torch.ops calls it after a look at each argument, which takes as long as a small layer.
        self._multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default._op
        self._bias = bias
        x = _probe_rows(PROBE_ROW_COUNTS[-1], weight)
        _verify_kernel(self, x, functional.linear(x, weight, bias), INT8_MAX_RELATIVE_ERROR)

    def __call__(self, x: Tensor) -> Tensor:
        """See :class:`Kernel`."""
        # The same as the norm of that order, which takes five times as long.
        largest = x.abs().amax(-1, keepdim=True)
        levels = self._levels
        product: Tensor = self._multiply(x / largest, 1 / levels, levels + 1, self._packed)
        product.mul_(largest)
        return product if self._bias is None else product.add_(self._bias)


class CompiledInt8Linear:
    """The same by compiled kernels, in one call; ``kernels`` know this weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels) -> None:
        matrix = kernels.pack_int8_weight(weight)
        self._matrix, self._kernels, self.inputs = matrix, kernels, matrix.inputs
        self._bias = None if bias is None else bias.contiguous()
        x = _probe_rows(PROBE_ROW_COUNTS[-1], weight)
        _verify_kernel(self, x, functional.linear(x, weight, bias), INT8_MAX_RELATIVE_ERROR)

    def __call__(self, x: Tensor) -> Tensor:
        """See :class:`Kernel`."""
        return self._kernels.int8_linear(x, self._matrix, self._bias)

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Of the weights, their scales, their zeros, and the bias, which is 0 if there is none."""
        held = (self._matrix.weights, self._matrix.scales, self._matrix.zeros)
        return (*(tensor.data_ptr() for tensor in held), 0 if self._bias is None else self._bias.data_ptr())  # type: ignore[return-value]

    def linear_after_silu_mul(self, x: Tensor) -> Tensor:
        """The product of ``silu(x[..., :n]) * x[..., n:]`` for x (…, 2n), which is overwritten."""
        return self._kernels.int8_linear(x, self._matrix, self._bias, gated=True)


def build_int8_linear(weight: Tensor, bias: Tensor | None, kernels: Kernels | None) -> LinearKernel:
    """The better of both. Raises :class:`UnusableError`, or what torch raises."""
    if kernels is not None and kernels.supports_int8_linear(weight):
        try:
            return CompiledInt8Linear(weight, bias, kernels)
        except UnusableKernelError as failure:
            log.warning("the compiled product is not used: %s", failure)
    return FbgemmInt8Linear(weight, bias)


class PackedLinear(nn.Module):
    """In the place of a ``torch.nn.Linear``."""

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

    The input is held only until each has had its part. It is known by identity; the caller has made sure that nobody
    writes to it in between.
    """

    def __init__(self, linear: PackedLinear, sizes: list[int]) -> None:
        self.linear = linear
        self._sizes = sizes
        self._input: Tensor | None = None
        self._parts: list[Tensor | None] = []

    def take_slice(self, x: Tensor, place: int) -> Tensor:
        """The part of the ``place``-th; a view into the product of all."""
        if x is not self._input or self._parts[place] is None:
            self._input, self._parts = x, list(self.linear(x).split(self._sizes, -1))
        part, self._parts[place] = self._parts[place], None
        if not any(other is not None for other in self._parts):
            self._input = None
        assert part is not None
        return part


class MergedLinearSlice(nn.Module):
    """One of :class:`Siblings`, in the place of a ``torch.nn.Linear``."""

    def __init__(self, group: MergedLinear, place: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.merged = group
        self.index = place

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        return self.merged.take_slice(x, self.index)


def _prepack_int8(weight: Tensor) -> Any:
    """Quantized and packed by fbgemm, whose kernel takes activations in fp32; the other engines have none."""
    scales = (weight.abs().amax(1) / 127).clamp_min(MIN_SCALE).double()
    zeros = torch.zeros(len(weight), dtype=torch.long)
    before = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "fbgemm"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the class is deprecated; the kernel has no other way in
            quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            return torch.ops.quantized.linear_prepack(quantized, None)
    finally:
        torch.backends.quantized.engine = before


def _probe_rows(count: int, weight: Tensor) -> Tensor:
    """Fixed rows to try a weight (outputs, inputs) with."""
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, weight.shape[1], generator=generator)


def _verify_kernel(kernel: LinearKernel, x: Tensor, truth: Tensor, most: float) -> None:
    """Raises :class:`UnusableError` unless the kernel is right, and bit-identical for any number of rows."""
    together = kernel(x)
    error = float((together - truth).norm() / truth.norm().clamp_min(MIN_SCALE))
    if not error <= most:
        raise UnusableKernelError(f"its result is off by {error:.2g}")
    if not all(torch.equal(kernel(x[:count]), together[:count]) for count in PROBE_ROW_COUNTS):
        raise UnusableKernelError("a row's result depends on the other rows")
