"""One matrix of all experts of a layer, packed: 16 bits, int8, int4 or MXFP4."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from antiphon.engine.kernels.half_linear import PackedHalfWeight
from antiphon.engine.kernels.int4_layout import PackedInt4Weight
from antiphon.engine.kernels.int8_layout import PackedInt8Weight
from antiphon.engine.kernels.mxfp4_layout import PackedMxfp4Weight
from antiphon.engine.kernels.quantized_linear import KernelWeight

ExpertForm = Literal["bfloat16", "float16", "int8", "int4", "mxfp4"]
PackedExpertWeight = KernelWeight | PackedHalfWeight

PackWeight = Callable[[Tensor], PackedExpertWeight]
"""Packs an expert's matrix (outputs, inputs), which is contiguous."""

PACKED_TYPES: dict[ExpertForm, type[PackedExpertWeight]] = {
    "bfloat16": PackedHalfWeight,
    "float16": PackedHalfWeight,
    "int8": PackedInt8Weight,
    "int4": PackedInt4Weight,
    "mxfp4": PackedMxfp4Weight,
}

NUM_SIZE_FIELDS = 2
"""Fields before the tensors in every packed weight: inputs and outputs."""


def form_of(packed: PackedExpertWeight) -> ExpertForm:
    """Returns the form of a packed weight."""
    if isinstance(packed, PackedHalfWeight):
        return "float16" if packed.is_fp16 else "bfloat16"
    return next(form for form, kind in PACKED_TYPES.items() if isinstance(packed, kind))


class ExpertMatrix(NamedTuple):
    """Packed weights (outputs, inputs) of all experts, and their biases (experts, outputs) or None.

    `tensors` holds those of a packed weight by name, with a first dimension for the experts.
    """

    form: ExpertForm
    inputs: int
    outputs: int
    tensors: dict[str, Tensor]
    bias: Tensor | None

    @classmethod
    def pack(cls, count: int, pack_expert: Callable[[int], PackedExpertWeight], bias: Tensor | None) -> "ExpertMatrix":
        """Returns a matrix of `count` experts, packed one after another; `pack_expert` gets an index."""
        packed = first = pack_expert(0)
        names = first._fields[NUM_SIZE_FIELDS:]
        tensors = {name: getattr(first, name).new_empty((count, *getattr(first, name).shape)) for name in names}
        for index in range(count):
            if index:
                packed = pack_expert(index)
            for name, tensor in tensors.items():
                tensor[index] = getattr(packed, name)
        return cls(form_of(first), first.inputs, first.outputs, tensors, bias)

    def take(self, index: int) -> PackedExpertWeight:
        """Returns an expert's packed weight, as views."""
        kind = PACKED_TYPES[self.form]
        return kind(self.inputs, self.outputs, **{name: tensor[index] for name, tensor in self.tensors.items()})

    def take_bias(self, index: int) -> Tensor | None:
        """Returns an expert's bias."""
        return None if self.bias is None else self.bias[index]

    @property
    def num_experts(self) -> int:
        """Number of experts."""
        return len(self.tensors["weights"])

    def flatten(self, prefix: str) -> dict[str, Tensor]:
        """Returns all tensors by name, to store them; `restore` reads them."""
        named = self.tensors if self.bias is None else self.tensors | {"bias": self.bias}
        sizes = torch.tensor([self.inputs, self.outputs])
        return {f"{prefix}.{name}": tensor for name, tensor in (named | {f"{self.form}_sizes": sizes}).items()}

    @classmethod
    def restore(cls, prefix: str, stored: dict[str, Tensor]) -> "ExpertMatrix":
        """Returns the matrix of which `stored` holds the tensors. Copies none of them."""
        named = {
            name.removeprefix(f"{prefix}."): value for name, value in stored.items() if name.startswith(f"{prefix}.")
        }
        form = next(form for form in PACKED_TYPES if f"{form}_sizes" in named)
        inputs, outputs = named.pop(f"{form}_sizes").tolist()
        bias = named.pop("bias", None)
        return cls(form, inputs, outputs, named, bias)
