"""Experts with packed weights, computed over the rows that chose them."""

import logging

import torch
from torch import Tensor, nn

from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.experts.gates import apply_post_norm, choose_gate, find_compiled_gate
from antiphon.engine.forward.experts.layout import ExpertsLayout
from antiphon.engine.forward.experts.matmul import Multiply, choose_multiply, unpack_weight
from antiphon.engine.forward.experts.matrix import ExpertForm, ExpertMatrix
from antiphon.engine.forward.experts.routing import add_identities, run_experts
from antiphon.engine.forward.replace import relative_error
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.expert_layer import ClampedGate, ExpertLayerWeights, matrix_args

log = logging.getLogger(__name__)

MAX_RELATIVE_ERROR = 0.1
"""Largest relative error against the unpacked weights. Activations of 8 bits give 0.01 to 0.02."""

COMPILED_EXPERTS_RTOL = 0.01
"""Largest relative error of the compiled layer: its activation may round to other last bits, and a level to another."""

PROBE_EXPERTS = 3
"""Number of experts on which a compiled layer is verified."""

EXPERT_PROBE_ROW_COUNTS = (1, 2, 5, 17)
"""Numbers of rows on which packed experts are verified."""


class UnusableExpertsError(Exception):
    """The packed experts compute something else than their weights, or rows depend on each other."""


class PackedExperts(nn.Module):
    """Replaces a module of fused experts. `module` is the original one without its weights.

    The tensors are no parameters: `flatten` returns them, and `restore` builds the module from them.
    """

    def __init__(
        self, module: nn.Module, layout: ExpertsLayout, up: ExpertMatrix, down: ExpertMatrix, kernels: Kernels | None
    ) -> None:
        super().__init__()
        self.module, self.up, self.down = module, up, down
        self._has_identities = layout.has_identities
        self._multiply = choose_multiply(up.form, kernels)
        self._gate = choose_gate(module, layout, down.inputs, kernels)
        self._kernels, self._layer = kernels, describe_layer(module, layout, up, down, kernels)

    @property
    def form(self) -> ExpertForm:
        """The form of the weights."""
        return self.up.form

    @property
    def num_experts(self) -> int:
        """Number of experts."""
        return self.up.num_experts

    @property
    def is_compiled(self) -> bool:
        """True if one call computes the whole layer."""
        return self._layer is not None

    def flatten(self) -> dict[str, Tensor]:
        """Returns all tensors by name."""
        return self.up.flatten("up") | self.down.flatten("down")

    @classmethod
    def restore(
        cls, module: nn.Module, layout: ExpertsLayout, stored: dict[str, Tensor], kernels: Kernels | None
    ) -> "PackedExperts":
        """Returns the experts whose tensors `flatten` returned, without a copy of them."""
        return cls(module, layout, ExpertMatrix.restore("up", stored), ExpertMatrix.restore("down", stored), kernels)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Returns the weighted sum of the chosen experts, (rows, hidden)."""
        arguments = (hidden_states, top_k_index, top_k_weights)
        if self._layer is not None and self._kernels is not None and hidden_states.dtype == torch.float32:
            result = self._kernels.expert_layer.run(self._layer, *arguments)
        else:
            result = self.run_in_parts(*arguments)
        return add_identities(result, *arguments, self.num_experts) if self._has_identities else result

    def run_in_parts(self, x: Tensor, indices: Tensor, route_weights: Tensor) -> Tensor:
        """Returns the sum without identities, by a call for each expert and each of its steps."""
        return run_experts(x, indices, route_weights, self.num_experts, self._compute)

    def run_only_in_parts(self) -> None:
        """Uses no compiled layer any more."""
        self._layer = None

    def _compute(self, index: int, rows: Tensor) -> Tensor:
        inner = self._gate(self._multiply(rows, self.up.take(index), self.up.take_bias(index)))
        result = self._multiply(inner, self.down.take(index), self.down.take_bias(index))
        return apply_post_norm(self.module, result)

    @torch.inference_mode()
    def verify(self) -> None:
        """Raises `UnusableExpertsError` unless the products of the first expert are right in any batch."""
        for matrix in (self.up, self.down):
            verify_products(matrix, self._multiply)
        self._verify_layer()

    def _verify_layer(self) -> None:
        """Keeps the compiled layer only if its results are those of its parts, in any batch."""
        x = torch.randn(EXPERT_PROBE_ROW_COUNTS[-1], self.up.inputs, generator=torch.Generator().manual_seed(2))
        indices = torch.arange(2 * len(x)).view(len(x), 2) % min(self.up.num_experts, PROBE_EXPERTS)
        weights = torch.linspace(0.1, 0.9, indices.numel()).view(indices.shape)
        expected, result = self.run_in_parts(x, indices, weights), self(x, indices, weights)
        rows = [self(x[:count], indices[:count], weights[:count]) for count in EXPERT_PROBE_ROW_COUNTS]
        is_same = all(torch.equal(part, result[: len(part)]) for part in rows)
        if not (relative_error(result, expected) <= COMPILED_EXPERTS_RTOL and is_same):
            message = "the compiled kernel for layers of experts is not used: its results differ"
            report_fallback(log, "expert_layer", message)
            self.run_only_in_parts()


def verify_products(matrix: ExpertMatrix, multiply: Multiply) -> None:
    """Raises `UnusableExpertsError` unless the products of the first expert are right in any batch."""
    x = torch.randn(EXPERT_PROBE_ROW_COUNTS[-1], matrix.inputs, generator=torch.Generator().manual_seed(1))
    packed, bias = matrix.take(0), matrix.take_bias(0)
    product = multiply(x, packed, bias)
    error = relative_error(product, nn.functional.linear(x, unpack_weight(packed), bias))
    if not error <= MAX_RELATIVE_ERROR:
        raise UnusableExpertsError(f"the relative error of their {matrix.form} product is {error:.2g}")
    parts = [multiply(x[:count], packed, bias) for count in EXPERT_PROBE_ROW_COUNTS]
    if not all(torch.equal(part, product[: len(part)]) for part in parts):
        raise UnusableExpertsError("a row's result depends on the other rows")


def describe_layer(
    module: nn.Module, layout: ExpertsLayout, up: ExpertMatrix, down: ExpertMatrix, kernels: Kernels | None
) -> ExpertLayerWeights | None:
    """Returns the addresses for the compiled layer of experts; None if it cannot compute this one."""
    gate = find_compiled_gate(module, layout)
    has_norm = bool(getattr(module, "has_post_expert_norm", False))
    if kernels is None or gate is None or has_norm or not kernels.is_row_aligned(down.inputs):
        return None
    args = [matrix_args(matrix.tensors, matrix.bias) for matrix in (up, down)]
    clamped = gate if isinstance(gate, ClampedGate) else None
    return ExpertLayerWeights(up.form, up.num_experts, up.inputs, down.inputs, args[0], args[1], clamped)
