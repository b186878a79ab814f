"""compressed-tensors, the format of llm-compressor: each layer's tensors tell how its weight is stored.

- `pack-quantized`: `weight_packed` int32 (outputs, input words) of 2 to 8 bits, `weight_shape`, and with zero
  points `weight_zero_point` int32 (output words, groups).
- `int-quantized` and `naive-quantized`: `weight` int8, and with zero points `weight_zero_point` (outputs, groups).
- `float-quantized` and `naive-quantized`: `weight` in FP8.

`weight_scale` has one element, one for each output (outputs, 1), one for each group of inputs (outputs, groups), or
one for each block. `weight_g_idx` is the group of each input, where they are not in order.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from antiphon.engine.checkpoint.quantized.fp8 import FP8_DTYPES, Fp8Weight
from antiphon.engine.checkpoint.quantized.integers import WORD_BITS, center_levels, unpack_words
from antiphon.engine.checkpoint.quantized.quantized_weight import (
    GroupedLevels,
    IntegerWeight,
    QuantizedWeight,
    drop_zeros,
    order_by_group,
)

SUFFIXES = (
    *(".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx"),
    *(".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point"),
)
"""Names of tensors other than the weight. Activations get scales of their own for each row, whatever the file says."""


def find_weights(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, QuantizedWeight]:
    """Returns the weights of all layers by name. `settings`: the checkpoint's `quantization_config`."""
    layers = [name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")]
    blocks = _find_block_shape(settings)
    weights: dict[str, QuantizedWeight] = {}
    for layer in layers:
        name = f"{layer}.weight"
        parts = {suffix: tensors[layer + suffix] for suffix in SUFFIXES if layer + suffix in tensors}
        if ".weight_packed" in parts:
            weights[name] = PackQuantizedWeight(parts)
        elif tensors[name].dtype in FP8_DTYPES:
            weights[name] = Fp8Weight(tensors[name], parts[".weight_scale"], blocks)
        else:
            weights[name] = Int8Weight(tensors[name], parts)
    return weights


def _find_block_shape(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns the outputs and inputs of a block; None if weights have no blocks."""
    for group in settings.get("config_groups", {}).values():
        shape = (group.get("weights") or {}).get("block_structure")
        if shape:
            return (int(shape[0]), int(shape[1]))
    return None


def _find_bits(inputs: int, words: int) -> int:
    """Returns the bits of each of these packed inputs. Raises `ValueError` if words have gaps."""
    for bits in (4, 8, 2, 3, 5, 6, 7):
        if -(-inputs * bits // WORD_BITS) == words:
            return bits
    raise ValueError(f"{words} words do not hold {inputs} inputs without gaps")


class PackQuantizedWeight(IntegerWeight):
    """A weight whose numbers are packed into int32 words. The number of their bits follows from the shape."""

    def __init__(self, parts: Mapping[str, Tensor]) -> None:
        self._words, self._scales = parts[".weight_packed"], parts[".weight_scale"]
        self._zeros = parts.get(".weight_zero_point")
        self._order = order_by_group(parts.get(".weight_g_idx"), self._scales.shape[-1])
        shape = [int(extent) for extent in parts[".weight_shape"]]
        super().__init__(shape, _find_bits(shape[1], self._words.shape[1]), *parts.values())

    def read_levels(self) -> GroupedLevels:
        """Returns the weight as whole numbers, its inputs ordered by group."""
        outputs, inputs = self.shape
        levels = center_levels(unpack_words(self._words, self.bits, inputs), self.bits)
        scales = self._scales.float().expand(outputs, -1).contiguous()
        zeros = None
        if self._zeros is not None:
            zeros = drop_zeros(center_levels(unpack_words(self._zeros.T, self.bits, outputs), self.bits).float().T)
        levels = levels if self._order is None else levels[:, self._order]
        return GroupedLevels(self.bits, levels, scales, zeros, self._order)


class Int8Weight(IntegerWeight):
    """A weight that is stored as int8."""

    def __init__(self, weight: Tensor, parts: Mapping[str, Tensor]) -> None:
        self._weight, self._zeros = weight, parts.get(".weight_zero_point")
        scales = parts[".weight_scale"]
        self._scales = scales.reshape(-1, scales.shape[-1] if scales.ndim > 1 else 1)
        self._order = order_by_group(parts.get(".weight_g_idx"), self._scales.shape[1])
        super().__init__(weight.shape, 8, weight, *parts.values())

    def read_levels(self) -> GroupedLevels:
        """Returns the weight as whole numbers, its inputs ordered by group."""
        outputs = len(self._weight)
        scales = self._scales.float().expand(outputs, -1).contiguous()
        zeros = None if self._zeros is None else drop_zeros(self._zeros.float().view(-1, scales.shape[1]))
        levels = self._weight if self._order is None else self._weight[:, self._order]
        zeros = None if zeros is None else zeros.expand(outputs, -1)
        return GroupedLevels(self.bits, levels, scales, zeros, self._order)
