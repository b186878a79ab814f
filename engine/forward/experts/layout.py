"""Recognizes fused experts: modules that hold one matrix of all experts as a parameter of three dimensions.

transformers' decorator `use_experts_implementation` marks most of their classes and describes how they store and
apply the weights. Experts in a `ModuleList` need nothing of this: their layers are ordinary linear layers.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

LAYOUT_FLAGS = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "is_concatenated", "_apply_gate")
"""Attributes of every module whose class has the decorator."""

DOWN_NAME = "down_proj"


class ExpertsLayout(NamedTuple):
    """How a module stores its experts.

    `up_name` names the parameter of the first matrix, which also holds the gate if there `is_gated`.
    `is_transposed`: an expert's matrix is (inputs, outputs). `is_interleaved`: outputs of gate and up alternate.
    `scales_inputs`: the block multiplies the inputs by the experts' weights, and the module gets all rows for each
    expert. `has_identities`: indices beyond those of the experts choose the row itself.
    """

    up_name: str
    has_bias: bool
    is_gated: bool
    is_transposed: bool
    is_interleaved: bool
    scales_inputs: bool = False
    has_identities: bool = False

    @property
    def names(self) -> tuple[str, str]:
        """Names of the parameters with the two matrices."""
        return self.up_name, DOWN_NAME

    def orient(self, name: str, weight: Tensor) -> Tensor:
        """Returns an expert's stored matrix as (outputs, inputs); outputs of the gate come first."""
        rows = weight.T if self.is_transposed else weight
        return self.order_outputs(name, rows)

    def order_outputs(self, name: str, outputs: Tensor) -> Tensor:
        """Returns the outputs, which are the first dimension, with those of the gate first, as a view if possible."""
        if name == DOWN_NAME or not self.is_interleaved:
            return outputs
        return torch.cat([outputs[::2], outputs[1::2]])


UNMARKED_LAYOUTS = {
    "Llama4TextExperts": ExpertsLayout("gate_up_proj", False, True, True, False, scales_inputs=True),
    "LongcatFlashExperts": ExpertsLayout("gate_up_proj", False, True, False, False, has_identities=True),
    "Step3p7Experts": ExpertsLayout("gate_up_proj", False, True, False, False),
}
"""Layouts of the classes that transformers does not mark, by name."""


def is_experts_class(kind: type) -> bool:
    """Tells whether modules of this class may have a layout."""
    return hasattr(kind, "_apply_gate") or kind.__name__ in UNMARKED_LAYOUTS


def read_layout(module: nn.Module) -> ExpertsLayout | None:
    """Returns the layout of a module of fused experts; None for any other module."""
    if type(module).__name__ in UNMARKED_LAYOUTS:
        return UNMARKED_LAYOUTS[type(module).__name__]
    if not all(hasattr(module, mark) for mark in LAYOUT_FLAGS):
        return None
    marked: Any = module
    return ExpertsLayout(
        "gate_up_proj" if marked.has_gate else "up_proj",
        bool(marked.has_bias),
        bool(marked.has_gate),
        bool(marked.is_transposed),
        bool(marked.has_gate and not marked.is_concatenated),
    )


def find_fused_experts(model: nn.Module) -> Iterator[tuple[str, nn.Module, ExpertsLayout]]:
    """Yields the name, the module and the layout of all fused experts that have their weights."""
    for name, module in model.named_modules():
        layout = read_layout(module)
        if layout is not None and all(_is_fused(module, part) for part in layout.names):
            yield name, module, layout


def _is_fused(module: nn.Module, name: str) -> bool:
    parameter = module._parameters.get(name)
    return parameter is not None and parameter.ndim == 3 and parameter.is_floating_point()
