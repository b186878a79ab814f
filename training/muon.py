"""The optimizer for the layers' matrices: Muon, with its Newton-Schulz iteration in fp32.

`torch.optim.Muon` iterates in bf16 on every processor. On one without bf16 units this takes 4.2 s for the matrices of
this model, more than the remainder of a training step; in fp32 it takes 0.2 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration, by Keller Jordan (https://kellerjordan.github.io/posts/muon/)."""
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum: orthogonalized updates, scaled to the mean size of AdamW's."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Performs one optimization step. Parameters without a gradient are left unchanged."""
        loss = closure() if closure else None
        for group in self.param_groups:
            for matrix in group["params"]:
                self._update_parameter(matrix, group)
        return loss

    def _update_parameter(self, matrix: Tensor, group: dict[str, Any]) -> None:
        if (gradient := matrix.grad) is None:
            return
        momentum_buffer = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
        momentum_buffer.lerp_(gradient, 1 - group["momentum"])
        update = orthogonalize(gradient.lerp(momentum_buffer, group["momentum"]))
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        matrix.add_(update, alpha=-0.2 * group["lr"] * max(matrix.shape) ** 0.5)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Returns the matrix with its singular values moved to near 1 (0.7 to 1.2), by matrix products alone."""
    transposed = matrix.shape[0] > matrix.shape[1]
    result = matrix.T if transposed else matrix
    result = result / result.norm().clamp(min=1e-7)
    linear, cubic, quintic = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = result @ result.T
        result = torch.addmm(result, torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic), result, beta=linear)
    return result.T if transposed else result
