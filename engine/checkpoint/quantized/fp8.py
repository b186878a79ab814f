"""FP8: weights in 8-bit floating point, with a scale for the whole weight, for each output, or for each block.

Names: `weight_scale_inv` (DeepSeek, Qwen, MiniMax; blocks of 128 by 128) or `weight_scale`. In spite of its name,
`weight_scale_inv` is a factor. Fused experts have the same names after that of the parameter.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from antiphon.engine.checkpoint.quantized.quantized_weight import QuantizedWeight

FP8_DTYPES = {torch.float8_e4m3fn, torch.float8_e5m2}

SCALE_SUFFIXES = ("_scale_inv", "_scale")
SUFFIXES = (".weight_scale_inv", ".weight_scale", ".input_scale", ".activation_scale")

EXPONENT_BIAS = 127
"""Bias of a scale that is stored as the exponent of two in a byte."""


def find_weights(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, QuantizedWeight]:
    """Returns all weights in FP8 by name. `settings`: the checkpoint's `quantization_config`."""
    blocks = settings.get("weight_block_size")
    shape = (int(blocks[0]), int(blocks[1])) if blocks else None
    weights: dict[str, QuantizedWeight] = {}
    for name, tensor in tensors.items():
        scale = next((tensors[name + suffix] for suffix in SCALE_SUFFIXES if name + suffix in tensors), None)
        if tensor.dtype in FP8_DTYPES:
            weights[name] = Fp8Weight(tensor, torch.ones(()) if scale is None else scale, shape)
    return weights


class Fp8Weight(QuantizedWeight):
    """A weight (…, outputs, inputs) in FP8. `blocks`: outputs and inputs of a block, if the weight has blocks.

    Raises `ValueError` if there are too many scales or too few.
    """

    def __init__(self, weight: Tensor, scales: Tensor, blocks: tuple[int, int] | None) -> None:
        self._weight, self._blocks = weight, blocks
        self._scales = scales.reshape(-1, 1) if scales.ndim < 2 else scales
        super().__init__(weight.shape, 8, weight, scales)
        self._extents = {axis: self._find_block_extent(axis, blocks) for axis in (-2, -1)}

    def dequantize(self) -> Tensor:
        """Returns the weight in fp32."""
        scales = self._scales.float()
        if self._scales.dtype == torch.uint8:
            scales = (scales - EXPONENT_BIAS).exp2()
        for axis, extent in self._extents.items():
            scales = scales.repeat_interleave(extent, axis).narrow(axis, 0, self.shape[axis])
        return self._weight.float().mul_(scales)

    def select(self, index: int) -> "Fp8Weight | None":
        """Returns the matrix of one of several fused experts."""
        if len(self.shape) == 2:
            return None
        return Fp8Weight(self._weight[index], self._scales[index], self._blocks)

    def _find_block_extent(self, axis: int, blocks: tuple[int, int] | None) -> int:
        """Returns the elements that share a scale along an axis. The last block may be cut short."""
        extent, count = self.shape[axis], self._scales.shape[axis]
        if blocks is not None and count > 1 and -(-extent // blocks[axis]) == count:
            return blocks[axis]
        if extent % count:
            raise ValueError(f"{count} scales do not fit {extent} elements of a weight")
        return extent // count
