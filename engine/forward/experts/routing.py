"""Computes each expert over the rows that chose it, and sums the weighted results of each row in a fixed order."""

from collections.abc import Callable

import torch
from torch import Tensor

ComputeExpert = Callable[[int, Tensor], Tensor]
"""Computes an expert, given its index, for rows (n, hidden)."""


def run_experts(x: Tensor, indices: Tensor, route_weights: Tensor, count: int, compute: ComputeExpert) -> Tensor:
    """Returns the weighted sum of each row's experts, for x (rows, hidden), indices and weights (rows, choices).

    A row's results are added in the order of the experts' indices, so their sum does not depend on the other rows.
    An index outside of `count` experts chooses none.
    """
    choices = indices.shape[1]
    flat = indices.reshape(-1)
    flat = torch.where((flat >= 0) & (flat < count), flat, count)
    order = flat.argsort(stable=True)
    row_counts = torch.bincount(flat, minlength=count + 1).tolist()
    rows, flat_weights = order // choices, route_weights.reshape(-1)[order].to(x.dtype)
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    first = 0
    for expert, row_count in enumerate(row_counts[:count]):
        if not row_count:
            continue
        end = first + row_count
        chosen = rows[first:end]
        out.index_add_(0, chosen, compute(expert, x[chosen]).mul_(flat_weights[first:end, None]))
        first = end
    return out


def add_identities(out: Tensor, x: Tensor, indices: Tensor, route_weights: Tensor, count: int) -> Tensor:
    """Adds each row to its own sum, times the weights of those of its indices that are `count` or more.

    The weights are added one after another, so that a row's sum does not depend on the other rows.
    """
    weights = torch.where(indices >= count, route_weights, 0.0).to(x.dtype)
    total, *others = weights.unbind(1)
    for weight in others:
        total = total + weight
    return out.add_(x * total[:, None])
