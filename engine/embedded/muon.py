"""The optimizer of the matrices within the layers: Muon, iterated in fp32.

`torch.optim.Muon` iterates in bf16 whatever the processor: on one without bf16 units that takes 4.2 s for the matrices
of this model, more than all the rest of a step; in fp32 it takes 0.2 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the Newton-Schulz iteration, as Keller Jordan published them (https://kellerjordan.github.io/posts/muon/)."""
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalized momentum (Nesterov's) of each matrix, as large in the mean as AdamW's would be."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; parameters without a gradient stay."""
        loss = closure() if closure else None
        for group in self.param_groups:
            for matrix in group["params"]:
                self._update_parameter(matrix, group)
        return loss

    def _update_parameter(self, matrix: Tensor, group: dict[str, Any]) -> None:
        if (gradient := matrix.grad) is None:
            return
        past = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
        past.lerp_(gradient, 1 - group["momentum"])
        update = orthogonalize(gradient.lerp(past, group["momentum"]))
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        matrix.add_(update, alpha=-0.2 * group["lr"] * max(matrix.shape) ** 0.5)


def orthogonalize(matrix: Tensor) -> Tensor:
    """The matrix with its singular values moved near one (0.7 to 1.2), by matrix products alone."""
    tall = matrix.shape[0] > matrix.shape[1]
    near = matrix.T if tall else matrix
    near = near / near.norm().clamp(min=1e-7)
    first, third, fifth = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = near @ near.T
        near = torch.addmm(near, torch.addmm(gram, gram, gram, beta=third, alpha=fifth), near, beta=first)
    return near.T if tall else near
