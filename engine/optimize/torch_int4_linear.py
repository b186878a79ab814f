"""A linear layer with weights of 4 bits, computed by torch where there is no compiler."""

from torch import Tensor
from torch.nn import functional

from antiphon.engine.kernels.int4_layout import (
    INT4_GROUP_INPUTS,
    PackedInt4Weight,
    pack_int4_weight,
    unpack_int4_group,
)

TORCH_INT4_LANES = 8
"""Outputs of a block of packed weights."""


class TorchInt4Linear:
    """Slow, but with the same memory as compiled kernels.

    The products of a group are whole numbers below 2^24, so fp32 adds them exactly in any order.
    """

    def __init__(self, weight: Tensor | PackedInt4Weight, bias: Tensor | None) -> None:
        if not isinstance(weight, PackedInt4Weight):
            weight = pack_int4_weight(weight, TORCH_INT4_LANES)
        self._packed, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """Implements `engine.optimize.linears.LinearKernel`."""
        packed = self._packed
        rows = x.reshape(-1, packed.inputs)
        row_max = rows.abs().amax(-1, keepdim=True)
        levels = (rows * (127 / row_max)).round_().nan_to_num_(0.0, 127.0, -127.0)
        levels = functional.pad(levels, (0, packed.padded_inputs - packed.inputs))
        result = rows.new_zeros(len(rows), len(packed.scales))
        for group in range(packed.weights.shape[1]):
            weight, scales = unpack_int4_group(packed, group)
            inputs = levels[:, group * INT4_GROUP_INPUTS : (group + 1) * INT4_GROUP_INPUTS]
            result.add_(inputs.mm(weight.T).mul_(scales))
        product = result.mul_(packed.scales).mul_(row_max / 127)[:, : packed.outputs]
        product = product if self._bias is None else product + self._bias
        return product.reshape(*x.shape[:-1], packed.outputs)
