"""bitsandbytes: indices of a table (NF4 or FP4) with a scale for each block, or int8 with a scale for each output.

Layout of 4 bits: `weight` uint8 (weights / 2, 1), the first of two weights in the upper bits; `weight.absmax`, the
scale of each block; `weight.quant_map`, the table; and `weight.quant_state.bitsandbytes__nf4`, JSON with the shape
and the size of a block. With double quantization, `absmax` holds indices of `weight.nested_quant_map`, with the
scales `weight.nested_absmax` and an offset. Layout of int8: `weight`, and `SCB`, the largest magnitude of each
output.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from antiphon.engine.checkpoint.quantized.quantized_weight import GroupedLevels, IntegerWeight, QuantizedWeight

STATE_MARK = ".quant_state.bitsandbytes__"
SUFFIXES = (
    *(".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".SCB", ".weight_format"),
    *(f"{STATE_MARK}nf4", f"{STATE_MARK}fp4"),
)

MAX_LEVEL = 127


def find_weights(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, QuantizedWeight]:  # noqa: ARG001  the tensors tell their layout
    """Returns the weights of all layers by name."""
    weights: dict[str, QuantizedWeight] = {}
    for name, tensor in tensors.items():
        stem, mark, _ = name.partition(STATE_MARK)
        if mark:
            parts = {part: tensors[f"{stem}.{part}"] for part in ("absmax", "quant_map")}
            nested = {
                part: tensors[f"{stem}.{part}"]
                for part in ("nested_absmax", "nested_quant_map")
                if f"{stem}.{part}" in tensors
            }
            weights[stem] = TableWeight(tensors[stem], json.loads(bytes(tensor.tolist())), parts | nested)
        elif name.endswith(".SCB"):
            stem = name.removesuffix(".SCB") + ".weight"
            weights[stem] = ScaledInt8Weight(tensors[stem], tensor)
    return weights


class TableWeight(QuantizedWeight):
    """A weight of 4-bit indices. `state`: what the file's JSON says about it."""

    def __init__(self, indices: Tensor, state: Mapping[str, Any], parts: Mapping[str, Tensor]) -> None:
        self._indices, self._state, self._parts = indices, state, parts
        super().__init__(state["shape"], 4, indices, *parts.values())

    def dequantize(self) -> Tensor:
        """Returns the weight in fp32."""
        scales = self._read_scales()
        pairs = self._indices.flatten().view(torch.uint8)  # some training frameworks store another type
        indices = torch.stack([pairs >> 4, pairs & 15], -1).flatten()[: self.shape.numel()]
        weight = self._parts["quant_map"].float()[indices.int()]
        blocks = scales.repeat_interleave(int(self._state["blocksize"]))[: len(weight)]
        return weight.mul_(blocks).view(self.shape)

    def _read_scales(self) -> Tensor:
        """Returns the scale of each block."""
        scales = self._parts["absmax"]
        if "nested_absmax" not in self._parts:
            return scales.float()
        table, outer = self._parts["nested_quant_map"].float(), self._parts["nested_absmax"].float()
        outer = outer.repeat_interleave(int(self._state["nested_blocksize"]))[: len(scales)]
        return table[scales.int()].mul_(outer).add_(float(self._state["nested_offset"]))


class ScaledInt8Weight(IntegerWeight):
    """A weight that is stored as int8, with the largest magnitude of each output."""

    def __init__(self, weight: Tensor, magnitudes: Tensor) -> None:
        self._weight, self._magnitudes = weight, magnitudes
        super().__init__(weight.shape, 8, weight, magnitudes)

    def read_levels(self) -> GroupedLevels:
        """Returns the weight as whole numbers."""
        return GroupedLevels(self.bits, self._weight, self._magnitudes.float().view(-1, 1) / MAX_LEVEL)
