"""Linear layers with a packed matrix for each expert, called with rows that are sorted by expert: those of jetmoe."""

import torch
from torch import Tensor, nn

from antiphon.engine.forward.experts.gates import apply_to_whole_vectors
from antiphon.engine.forward.experts.matmul import choose_multiply
from antiphon.engine.forward.experts.matrix import ExpertForm, ExpertMatrix
from antiphon.engine.forward.experts.packed import verify_products
from antiphon.engine.kernels.bindings import Kernels

ACTIVATION_NAME = "activation"
"""Activation between the two layers of a block, whose last bits depend on an element's place in the tensor."""

MATRIX_PREFIX = "matrix"


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


def make_activations_exact(model: nn.Module) -> None:
    """Makes the activations exact of blocks with packed layers."""
    for block in model.modules():
        activation = block._modules.get(ACTIVATION_NAME)
        has_packed = any(isinstance(child, PackedGroupedLinear) for child in block.children())
        if has_packed and activation is not None and not isinstance(activation, WholeVectorActivation):
            setattr(block, ACTIVATION_NAME, WholeVectorActivation(activation))
