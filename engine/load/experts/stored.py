"""Experts whose weights stay as they are stored, in 16 or 32 bits, until they are packed."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.engine.forward.experts.gates import ModuleGate, apply_post_norm
from antiphon.engine.forward.experts.layout import DOWN_NAME, ExpertsLayout
from antiphon.engine.forward.experts.matrix import ExpertMatrix, PackedExpertWeight, PackWeight
from antiphon.engine.forward.experts.routing import add_identities, run_experts
from antiphon.engine.forward.replace import relative_error
from antiphon.engine.load.experts.tensor_files import ExpertTensors

ExpertWeights = Mapping[str, Tensor | ExpertTensors]
"""The matrices of all experts by name: in memory, or in mapped files."""

EXPERT_PROBE_ROWS = 5
STORED_EXPERTS_RTOL = 1e-4
"""Largest relative error between a module's own results in fp32 and ours. Only the order of additions may differ."""


class UnknownExpertsError(Exception):
    """The module computes something else from its weights than its class says."""


class StoredExperts(nn.Module):
    """Replaces a module of fused experts and computes them in fp32, converting one expert at a time.

    The weights are no parameters of this module, so that nothing converts them as a whole. `module` is the original
    one without its weights; `weights` and `biases` hold the tensors of all experts by name. Without `weights`,
    they are those of the original.
    """

    def __init__(self, module: nn.Module, layout: ExpertsLayout, weights: ExpertWeights | None = None) -> None:
        super().__init__()
        self.layout, self.module = layout, copy.copy(module)
        self.module._parameters = dict(module._parameters)
        self.weights: ExpertWeights = {name: self._take(name) for name in layout.names} if weights is None else weights
        self.biases = {name: self._take(f"{name}_bias") for name in layout.names if layout.has_bias}
        self._gate = ModuleGate(self.module, layout)

    def _take(self, name: str) -> Tensor:
        parameter = self.module._parameters.pop(name)
        assert parameter is not None
        return parameter.detach()

    @property
    def num_experts(self) -> int:
        """Number of experts that the weights hold."""
        return len(self.weights[DOWN_NAME])

    def read_weight(self, name: str, index: int) -> Tensor:
        """Returns an expert's matrix as the module's own code reads it, in the type in which it is stored."""
        return self.weights[name][index]

    def expert_weight(self, name: str, index: int) -> Tensor:
        """Returns an expert's matrix (outputs, inputs) in the type in which it is stored."""
        return self.layout.orient(name, self.read_weight(name, index))

    def release_pages(self, name: str, index: int) -> None:
        """Gives the pages of an expert's matrix back to the system, if it is in a file."""
        held = self.weights[name]
        if isinstance(held, ExpertTensors):
            held.release(index)

    def expert_bias(self, name: str, index: int) -> Tensor | None:
        """Returns an expert's bias (outputs) in fp32."""
        return self.layout.order_outputs(name, self.biases[name][index].float()) if self.biases else None

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the weights are stored."""
        return self.read_weight(DOWN_NAME, 0).dtype

    def pack_matrix(self, name: str, pack: PackWeight) -> ExpertMatrix:
        """Returns a packed matrix of all experts, and gives its pages in the file back to the system."""

        def pack_expert(index: int) -> PackedExpertWeight:
            packed = pack(self.expert_weight(name, index).contiguous())
            self.release_pages(name, index)
            return packed

        return ExpertMatrix.pack(self.num_experts, pack_expert, self.stack_biases(name))

    def stack_biases(self, name: str) -> Tensor | None:
        """Returns the biases of all experts (experts, outputs) in fp32; None if they have none."""
        biases = [self.expert_bias(name, index) for index in range(self.num_experts)]
        return torch.stack([bias for bias in biases if bias is not None]) if self.biases else None

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Returns the weighted sum of the chosen experts, (rows, hidden)."""
        arguments = (hidden_states, top_k_index, top_k_weights, self.num_experts)
        result = run_experts(*arguments, self._compute)
        return add_identities(result, *arguments) if self.layout.has_identities else result

    def _compute(self, index: int, rows: Tensor) -> Tensor:
        up, down = (self.expert_weight(name, index).float() for name in self.layout.names)
        up_bias, down_bias = (self.expert_bias(name, index) for name in self.layout.names)
        inner = self._gate(functional.linear(rows, up, up_bias))
        result = apply_post_norm(self.module, functional.linear(inner, down, down_bias))
        for name in self.layout.names:
            self.release_pages(name, index)
        return result


@torch.inference_mode()
def check_stored_experts(stored: StoredExperts, original: nn.Module) -> None:
    """Raises `UnknownExpertsError` unless the results equal those of the original's own code.

    The comparison takes the memory of one expert in fp32. `original` needs no weights: it gets those of `stored`.
    With identities, each row chooses the expert and an identity.
    """
    choices = 2 if stored.layout.has_identities else 1
    inputs = stored.expert_weight(stored.layout.up_name, 0).shape[1]
    x = torch.randn(EXPERT_PROBE_ROWS, inputs, generator=torch.Generator().manual_seed(1))
    weights = torch.linspace(0.5, 1.5, EXPERT_PROBE_ROWS * choices).view(EXPERT_PROBE_ROWS, choices)
    try:
        expected = _run_own_code(stored, original, x, weights)
    except Exception as failure:  # a block of unknown code can raise anything
        raise UnknownExpertsError(f"its own code fails with one expert: {failure}") from failure
    indices = torch.tensor([0, stored.num_experts])[:choices].expand(EXPERT_PROBE_ROWS, -1)
    error = relative_error(stored(x, indices, weights), expected)
    if not error <= STORED_EXPERTS_RTOL:
        raise UnknownExpertsError(f"its own results differ by {error:.2g}")


def _run_own_code(stored: StoredExperts, original: nn.Module, x: Tensor, weights: Tensor) -> Tensor:
    """Returns the weighted results (rows, hidden) of a copy of the original that has the first expert only."""
    single, choices = copy.copy(original), weights.shape[1]
    vars(single).update(num_experts=1, num_routed_experts=1, total_experts=choices)
    single._parameters = dict(original._parameters)
    for name in stored.layout.names:
        single._parameters[name] = nn.Parameter(stored.read_weight(name, 0).float()[None], requires_grad=False)
        if stored.biases:
            single._parameters[f"{name}_bias"] = nn.Parameter(stored.biases[name][:1].float(), requires_grad=False)
    forward: Any = type(single).forward
    forward = getattr(forward, "__wrapped__", forward)
    indices = torch.arange(choices).expand(len(x), -1)
    result: Tensor = (
        forward(single, x) * weights if stored.layout.scales_inputs else forward(single, x, indices, weights)
    )
    return result
