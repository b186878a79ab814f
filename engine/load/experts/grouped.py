"""Linear layers with a matrix for each expert, called with rows that are sorted by expert: those of jetmoe.

Experts of its feed-forward blocks have two of them, and so do those of its attention.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.engine.forward.experts.gates import apply_to_whole_vectors
from antiphon.engine.forward.experts.matmul import choose_multiply
from antiphon.engine.forward.experts.matrix import ExpertForm, ExpertMatrix, PackedExpertWeight, PackWeight
from antiphon.engine.forward.experts.packed import verify_products
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.load.experts.stored import PROBE_ROWS, STORED_EXPERTS_RTOL
from antiphon.engine.load.experts.tensor_files import ExpertTensors
from antiphon.engine.replace import relative_error

GROUPED_CLASS_NAMES = {"JetMoeParallelExperts"}
ACTIVATION_NAME = "activation"
"""Activation between the two layers of a block, whose last bits depend on an element's place in the tensor."""

MATRIX_PREFIX = "matrix"


class StoredGroupedLinear(nn.Module):
    """Computes in fp32 from weights (experts, outputs, inputs) that stay as they are stored until they are packed."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self._weights = ExpertTensors([weights])

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the weights are stored."""
        return self._weights.dtype

    def pack_matrix(self, pack: PackWeight) -> ExpertMatrix:
        """Returns the packed matrix of all experts, and gives its pages in the file back to the system."""

        def pack_expert(index: int) -> PackedExpertWeight:
            packed = pack(self._weights[index])
            self._weights.release(index)
            return packed

        return ExpertMatrix.pack(len(self._weights), pack_expert, None)

    def forward(self, inputs: Tensor, expert_size: list[int]) -> Tensor:
        """Returns the products of all rows; `expert_size` holds the number of rows of each expert."""
        products = []
        for index, rows in enumerate(torch.split(inputs, expert_size)):
            products.append(functional.linear(rows, self._weights[index].float()))
            self._weights.release(index)
        return torch.cat(products)


class PackedGroupedLinear(nn.Module):
    """Computes with packed weights. A row's product does not depend on the other rows."""

    def __init__(self, matrix: ExpertMatrix, kernels: Kernels | None) -> None:
        super().__init__()
        self.matrix = matrix
        self._multiply = choose_multiply(matrix.form, kernels)

    @property
    def form(self) -> ExpertForm:
        """The form of the weights."""
        return self.matrix.form

    def flatten(self) -> dict[str, Tensor]:
        """Returns all tensors by name."""
        return self.matrix.flatten(MATRIX_PREFIX)

    @classmethod
    def restore(cls, stored: dict[str, Tensor], kernels: Kernels | None) -> "PackedGroupedLinear":
        """Returns the layer whose tensors `flatten` returned, without a copy of them."""
        return cls(ExpertMatrix.restore(MATRIX_PREFIX, stored), kernels)

    def forward(self, inputs: Tensor, expert_size: list[int]) -> Tensor:
        """Implements `StoredGroupedLinear.forward`."""
        products = [
            self._multiply(rows.contiguous(), self.matrix.take(index), None)
            for index, rows in enumerate(torch.split(inputs, expert_size))
            if len(rows)
        ]
        return torch.cat(products) if products else inputs.new_zeros(0, self.matrix.outputs)

    @torch.inference_mode()
    def verify(self) -> None:
        """Raises `UnusableExpertsError` unless the products of the first expert are right in any batch."""
        verify_products(self.matrix, self._multiply)


class WholeVectorActivation(nn.Module):
    """Applies an elementwise function with the same bits for an element wherever it is."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Returns the function of all elements."""
        return apply_to_whole_vectors(self.function, x)


@torch.inference_mode()
def hold_grouped_linears(model: nn.Module) -> dict[str, str]:
    """Replaces layers of `GROUPED_CLASS_NAMES` by stored ones. Returns the reason for each that stays."""
    failures = {}
    for name, module in list(model.named_modules()):
        weight = module._parameters.get("weight")
        if type(module).__name__ not in GROUPED_CLASS_NAMES or weight is None:
            continue
        stored = StoredGroupedLinear(weight.detach())
        error = _measure_error(stored, module, weight)
        if error <= STORED_EXPERTS_RTOL:
            model.set_submodule(name, stored)
        else:
            failures[name] = f"its own results differ by {error:.2g}"
    return failures


def _measure_error(stored: StoredGroupedLinear, original: nn.Module, weight: Tensor) -> float:
    """Returns the relative error of the first expert's products to those of the original's own code in fp32."""
    single = copy.copy(original)
    single._parameters = {"weight": nn.Parameter(weight[:1].float(), requires_grad=False)}
    vars(single)["num_experts"] = 1
    x = torch.randn(PROBE_ROWS, weight.shape[2], generator=torch.Generator().manual_seed(1))
    return relative_error(stored(x, [PROBE_ROWS, *[0] * (len(weight) - 1)]), single(x, [PROBE_ROWS]))


def make_activations_exact(model: nn.Module) -> None:
    """Makes the activations exact of blocks with packed layers."""
    for block in model.modules():
        activation = block._modules.get(ACTIVATION_NAME)
        has_packed = any(isinstance(child, PackedGroupedLinear) for child in block.children())
        if has_packed and activation is not None and not isinstance(activation, WholeVectorActivation):
            setattr(block, ACTIVATION_NAME, WholeVectorActivation(activation))
