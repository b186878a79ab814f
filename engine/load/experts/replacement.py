"""Replaces transformers' experts by stored ones, and blocks that call their experts in another way than most."""

import copy
import logging
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.experts.layout import find_fused_experts
from antiphon.engine.forward.replace import relative_error
from antiphon.engine.load.experts.grouped import wrap_grouped_linears
from antiphon.engine.load.experts.placeholders import mix_rows
from antiphon.engine.load.experts.stored import (
    EXPERT_PROBE_ROWS,
    STORED_EXPERTS_RTOL,
    StoredExperts,
    UnknownExpertsError,
    check_stored_experts,
)

log = logging.getLogger(__name__)


class InputScalingMixture(nn.Module):
    """Replaces a block that multiplies the inputs of experts by their weights, not their outputs, as llama4's do.

    The original computes each expert over all rows, most of them zeros; this one over the rows that chose it.
    """

    def __init__(self, block: nn.Module, experts: nn.Module) -> None:
        super().__init__()
        original: Any = block
        self.router, self.shared_expert, self.experts = original.router, original.shared_expert, experts
        self._choices: int = original.top_k

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the results (rows, hidden) and the router's logits (rows, experts)."""
        rows = hidden_states.flatten(0, -2)
        scores, logits = self.router(rows)
        indices = logits.topk(self._choices, dim=1).indices
        scaled = (rows[:, None] * scores.gather(1, indices)[..., None]).flatten(0, 1)
        results = self.experts(scaled, indices.view(-1, 1), scaled.new_ones(len(scaled), 1))
        total, *others = results.view(len(rows), self._choices, -1).unbind(1)
        for result in others:
            total = total + result
        return self.shared_expert(rows) + total, logits


def wrap_all_experts(model: nn.Module) -> dict[str, str]:
    """Replaces fused experts by `StoredExperts`. Returns the reason for each that computes something else."""
    failures = {}
    for name, module, layout in list(find_fused_experts(model)):
        try:
            replace_experts(model, name, StoredExperts(module, layout), module)
        except UnknownExpertsError as failure:
            failures[name] = str(failure)
    return failures | wrap_grouped_linears(model)


def wrap_loaded_experts(model: nn.Module) -> None:
    """Replaces fused experts by `StoredExperts`, and tells why others stay."""
    for reason in wrap_all_experts(model).values():
        report_fallback(log, "experts", "experts stay as transformers has them: %s", reason)


def replace_experts(model: nn.Module, name: str, stored: StoredExperts, original: nn.Module) -> None:
    """Replaces the original experts by stored ones that compute the same; else raises `UnknownExpertsError`."""
    check_stored_experts(stored, original)
    if not stored.layout.scales_inputs:
        model.set_submodule(name, stored)
        return
    block_name = name.rpartition(".")[0]
    block = model.get_submodule(block_name)
    _check_input_scaling(block, stored)
    model.set_submodule(block_name, InputScalingMixture(block, stored))


class _Factors(nn.Module):
    """Takes the place of stored experts in a check."""

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        return mix_rows(hidden_states, top_k_index, top_k_weights)


class _FactorsOfAllRows(nn.Module):
    """Computes the same for an original block, which calls its experts with all rows for each of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def forward(self, hidden_states: Tensor) -> Tensor:
        indices = torch.arange(self._count).repeat_interleave(len(hidden_states) // self._count)[:, None]
        return mix_rows(hidden_states, indices, torch.ones(indices.shape))


@torch.inference_mode()
def _check_input_scaling(block: nn.Module, stored: StoredExperts) -> None:
    """Raises `UnknownExpertsError` unless the block treats experts as `InputScalingMixture` does.

    Other functions take the place of experts, and of the shared one, whose weights may be in 16 bits.
    """
    inputs = stored.expert_weight(stored.layout.up_name, 0).shape[1]
    x = torch.randn(1, EXPERT_PROBE_ROWS, inputs, generator=torch.Generator().manual_seed(2))
    own: Any = copy.copy(block)
    try:
        parts = {"router": copy.deepcopy(own.router).float(), "shared_expert": nn.Tanh()}
        own._modules = {**block._modules, **parts, "experts": _FactorsOfAllRows(stored.num_experts)}
        results = InputScalingMixture(own, _Factors())(x)
        errors = [relative_error(result, expected) for result, expected in zip(results, own(x), strict=True)]
    except Exception as failure:  # a block of unknown code can raise anything
        raise UnknownExpertsError(f"its block fails with other experts: {failure}") from failure
    if not max(errors) <= STORED_EXPERTS_RTOL:
        raise UnknownExpertsError(f"the results of its block differ by {max(errors):.2g}")
