"""GPTQ: whole numbers of 2, 3, 4 or 8 bits, packed along the inputs, with a scale and a zero point for each group.

Layout, as AutoGPTQ and GPTQModel write it: `qweight` int32 (input words, outputs), `qzeros` int32 (groups, output
words), `scales` fp16 (groups, outputs), and `g_idx` int32 (inputs), the group of each input. A zero point is stored
less one, except in the format `gptq_v2`.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from antiphon.engine.checkpoint.quantized.integers import WORD_BITS, center_levels, unpack_words
from antiphon.engine.checkpoint.quantized.quantized_weight import (
    GroupedLevels,
    IntegerWeight,
    QuantizedWeight,
    drop_zeros,
    order_by_group,
)

SUFFIXES = (".qweight", ".qzeros", ".scales", ".g_idx")


def find_weights(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, QuantizedWeight]:
    """Returns the weights of all layers by name. `settings`: the checkpoint's `quantization_config`."""
    layers = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    is_v2 = settings.get("checkpoint_format") == "gptq_v2"
    return {
        f"{layer}.weight": GptqWeight(
            [tensors[layer + suffix] for suffix in SUFFIXES[:3]], tensors.get(layer + ".g_idx"), is_v2=is_v2
        )
        for layer in layers
    }


class GptqWeight(IntegerWeight):
    """A weight in GPTQ's layout. The number of its bits follows from the shape of `qzeros`."""

    def __init__(self, tensors: list[Tensor], group_index: Tensor | None, *, is_v2: bool) -> None:
        self._words, self._zeros, self._scales = tensors
        self._order, self._is_v2 = order_by_group(group_index, len(self._scales)), is_v2
        outputs = self._scales.shape[1]
        bits = self._zeros.shape[1] * WORD_BITS // outputs
        super().__init__((outputs, len(self._words) * WORD_BITS // bits), bits, *tensors, group_index)

    def read_levels(self) -> GroupedLevels:
        """Returns the weight as whole numbers, its inputs ordered by group."""
        outputs, inputs = self.shape
        levels = center_levels(unpack_words(self._words.T, self.bits, inputs), self.bits)
        zeros = unpack_words(self._zeros, self.bits, outputs)
        if not self._is_v2:
            zeros = zeros + 1 & 2**self.bits - 1
        zeros = center_levels(zeros, self.bits).float().T
        levels = levels if self._order is None else levels[:, self._order]
        scales = self._scales.float().T.contiguous()
        return GroupedLevels(self.bits, levels, scales, drop_zeros(zeros), self._order)
