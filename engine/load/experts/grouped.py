"""Linear layers with a matrix for each expert, called with rows that are sorted by expert: those of jetmoe.

Experts of its feed-forward blocks have two of them, and so do those of its attention.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.engine.forward.experts.matrix import ExpertMatrix, PackedExpertWeight, PackWeight
from antiphon.engine.forward.replace import relative_error
from antiphon.engine.load.experts.stored import EXPERT_PROBE_ROWS, STORED_EXPERTS_RTOL
from antiphon.engine.load.experts.tensor_files import ExpertTensors

GROUPED_CLASS_NAMES = {"JetMoeParallelExperts"}


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


@torch.inference_mode()
def wrap_grouped_linears(model: nn.Module) -> dict[str, str]:
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
    x = torch.randn(EXPERT_PROBE_ROWS, weight.shape[2], generator=torch.Generator().manual_seed(1))
    return relative_error(stored(x, [EXPERT_PROBE_ROWS, *[0] * (len(weight) - 1)]), single(x, [EXPERT_PROBE_ROWS]))
