"""Stand-ins for experts while a model's forward pass is validated.

Experts whose activations have 8 bits turn a difference in the last bits into one of a level, and routers turn that into
other experts: two correct passes then give different logits. Validation compares attention, caches and the order of
rows, for which the results of experts do not matter.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from antiphon.engine.forward.experts.packed import PackedExperts
from antiphon.engine.load.experts.stored import StoredExperts

FACTOR_STEP = 0.618034
"""Distance between the factors of neighbours, modulo 1. It is the golden ratio, whose multiples stay far apart."""


@contextmanager
def use_placeholders(model: nn.Module) -> Iterator[int]:
    """Within this context, the experts of this package compute `mix_rows` instead of their weights.

    Yields the number of layers whose experts do so.
    """
    kinds = (PackedExperts, StoredExperts)
    experts = [module for module in model.modules() if isinstance(module, kinds)]
    for module in experts:
        vars(module)["forward"] = mix_rows
    try:
        yield len(experts)
    finally:
        for module in experts:
            del vars(module)["forward"]


def mix_rows(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Returns each row, reversed, times the sum of its route weights, each times a factor of its expert.

    Another row, index or weight gives another result. A multiple of the row itself would not do: after the residual
    connection, the next norm would remove the factor.
    """
    factors = 0.5 + (top_k_index * FACTOR_STEP) % 1.0
    totals = (top_k_weights * factors).sum(-1, keepdim=True)
    return hidden_states.flip(-1) * totals.to(hidden_states.dtype)
