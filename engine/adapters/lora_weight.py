"""The matrices of an adapter in one layer, as a product whose rows do not depend on each other."""

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.optimize.linears import OneDnnLinear, UnusableKernelError


class LoraWeight:
    """Computes scale · B(A(x)) for rows x (n, inputs).

    On a CPU it computes in fp32, and a row's bits are the same in any batch: packed weights are verified for this, and
    where they fail, rows are computed one by one. On a GPU it computes in ``dtype``.
    """

    def __init__(self, a: Tensor, b: Tensor, scale: float, device: torch.device, dtype: torch.dtype) -> None:
        self.rank, self.inputs = a.shape
        self.outputs = b.shape[0]
        is_cpu = device.type == "cpu"
        self._dtype = torch.float32 if is_cpu else dtype
        scaled = b.float() * scale
        # Copies, so that the file's memory is not kept.
        weights = [weight.to(device, self._dtype, copy=True).contiguous() for weight in (a, scaled)]
        make = _make_row_product if is_cpu else _make_batch_product
        self._products = [make(weight) for weight in weights]

    @property
    def num_bytes(self) -> int:
        """Memory of the matrices in bytes."""
        return (self.inputs + self.outputs) * self.rank * self._dtype.itemsize

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the change of the layer's output: (n, inputs) → (n, outputs)."""
        down, up = self._products
        result: Tensor = up(down(x.to(self._dtype)))
        return result


class _BatchProduct:
    """x · weightᵀ by torch's own matrix product."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight)


class _SingleRowProduct(_BatchProduct):
    """x · weightᵀ row by row: slow, and the same bits for a row in any batch."""

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([functional.linear(row, self._weight) for row in torch.split(x, 1)])


def _make_batch_product(weight: Tensor) -> _BatchProduct:
    return _BatchProduct(weight)


def _make_row_product(weight: Tensor) -> "OneDnnLinear | _SingleRowProduct":
    try:
        return OneDnnLinear(weight, None)
    except (UnusableKernelError, RuntimeError, AttributeError, NotImplementedError):
        return _SingleRowProduct(weight)
