"""Experts with packed weights, computed over the rows that chose them."""

import torch
from torch import Tensor, nn

from antiphon.engine.experts.gates import choose_gate
from antiphon.engine.experts.layout import ExpertsLayout
from antiphon.engine.experts.matrix import ExpertForm, ExpertMatrix
from antiphon.engine.experts.products import choose_multiply, unpack_weight
from antiphon.engine.experts.routing import run_experts
from antiphon.engine.experts.stored import apply_post_norm
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.optimize.replace import relative_error

MAX_RELATIVE_ERROR = 0.1
"""Largest relative error against the unpacked weights. Activations of 8 bits give 0.01 to 0.02."""

PROBE_ROW_COUNTS = (1, 2, 5, 17)
"""Numbers of rows on which packed experts are verified."""


class UnusableExpertsError(Exception):
    """The packed experts compute something else than their weights, or rows depend on each other."""


class PackedExperts(nn.Module):
    """Replaces a module of fused experts. ``module`` is the original one without its weights.

    The tensors are no parameters: :meth:`flatten` returns them, and :meth:`restore` builds the module from them.
    """

    def __init__(
        self, module: nn.Module, layout: ExpertsLayout, up: ExpertMatrix, down: ExpertMatrix, kernels: Kernels | None
    ) -> None:
        super().__init__()
        self.module, self.up, self.down = module, up, down
        self._multiply = choose_multiply(up.form, kernels)
        self._gate = choose_gate(module, layout, down.inputs, kernels)

    @property
    def form(self) -> ExpertForm:
        """The form of the weights."""
        return self.up.form

    @property
    def nbytes(self) -> int:
        """Memory of all tensors."""
        return sum(tensor.nbytes for tensor in self.flatten().values())

    def flatten(self) -> dict[str, Tensor]:
        """Returns all tensors by name."""
        return self.up.flatten("up") | self.down.flatten("down")

    @classmethod
    def restore(
        cls, module: nn.Module, layout: ExpertsLayout, stored: dict[str, Tensor], kernels: Kernels | None
    ) -> "PackedExperts":
        """Returns the experts whose tensors :meth:`flatten` returned, without a copy of them."""
        return cls(module, layout, ExpertMatrix.restore("up", stored), ExpertMatrix.restore("down", stored), kernels)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Returns the weighted sum of the chosen experts, (rows, hidden)."""
        return run_experts(hidden_states, top_k_index, top_k_weights, self.up.num_experts, self._compute)

    def _compute(self, index: int, rows: Tensor) -> Tensor:
        inner = self._gate(self._multiply(rows, self.up.take(index), self.up.take_bias(index)))
        result = self._multiply(inner, self.down.take(index), self.down.take_bias(index))
        return apply_post_norm(self.module, result)

    @torch.inference_mode()
    def verify(self) -> None:
        """Raises :class:`UnusableExpertsError` unless the products of the first expert are right in any batch."""
        for matrix in (self.up, self.down):
            x = torch.randn(PROBE_ROW_COUNTS[-1], matrix.inputs, generator=torch.Generator().manual_seed(1))
            packed, bias = matrix.take(0), matrix.take_bias(0)
            product = self._multiply(x, packed, bias)
            error = relative_error(product, nn.functional.linear(x, unpack_weight(packed), bias))
            if not error <= MAX_RELATIVE_ERROR:
                raise UnusableExpertsError(f"the relative error of their {matrix.form} product is {error:.2g}")
            parts = [self._multiply(x[:count], packed, bias) for count in PROBE_ROW_COUNTS]
            if not all(torch.equal(part, product[: len(part)]) for part in parts):
                raise UnusableExpertsError("a row's result depends on the other rows")
