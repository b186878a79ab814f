"""AWQ: whole numbers of 4 bits, packed along the outputs, with a scale and a zero point for each group.

Layout of the version `gemm`, as AutoAWQ writes it: `qweight` int32 (inputs, outputs / 8), `qzeros` int32 (groups,
outputs / 8), `scales` fp16 (groups, outputs). The nibbles of a word hold its outputs in `NIBBLE_OUTPUTS`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from antiphon.engine.checkpoint.quantized.integers import center_levels, unpack_words
from antiphon.engine.checkpoint.quantized.quantized_weight import (
    GroupedLevels,
    IntegerWeight,
    QuantizedWeight,
    drop_zeros,
)

SUFFIXES = (".qweight", ".qzeros", ".scales")

NIBBLE_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of the eight in a word, that each nibble holds, from the lowest one on."""

AWQ_BITS = 4


def find_weights(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, QuantizedWeight]:  # noqa: ARG001  the layout has no variants
    """Returns the weights of all layers by name."""
    layers = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    return {f"{layer}.weight": AwqWeight([tensors[layer + suffix] for suffix in SUFFIXES]) for layer in layers}


class AwqWeight(IntegerWeight):
    """A weight in AWQ's layout."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._words, self._zeros, self._scales = tensors
        super().__init__((self._scales.shape[1], len(self._words)), AWQ_BITS, *tensors)

    def read_levels(self) -> GroupedLevels:
        """Returns the weight as whole numbers."""
        levels, zeros = (_unpack_outputs(words).T for words in (self._words, self._zeros))
        return GroupedLevels(
            self.bits, levels.contiguous(), self._scales.float().T.contiguous(), drop_zeros(zeros.float())
        )


def _unpack_outputs(words: Tensor) -> Tensor:
    """Returns centered numbers: int32 (rows, words) → int8 (rows, outputs)."""
    numbers = unpack_words(words, AWQ_BITS, words.shape[1] * len(NIBBLE_OUTPUTS))
    places = torch.tensor(NIBBLE_OUTPUTS).argsort()
    return center_levels(numbers.view(len(words), -1, len(NIBBLE_OUTPUTS))[..., places].flatten(1), AWQ_BITS)
