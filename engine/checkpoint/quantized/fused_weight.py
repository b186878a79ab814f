"""The weights of several layers as one weight, as transformers fuses experts, while they stay in the files."""

from collections.abc import Sequence

import torch
from torch import Tensor

from antiphon.engine.checkpoint.quantized.quantized_weight import QuantizedWeight


class FusedExpertsWeight(QuantizedWeight):
    """Weights (matrices, outputs, inputs). A matrix is the concatenation of stored ones along `axis`."""

    def __init__(self, matrices: Sequence["FusedWeight"]) -> None:
        self.matrices = list(matrices)
        first = self.matrices[0]
        super().__init__((len(self.matrices), *first.shape), first.bits)

    def dequantize(self) -> Tensor:
        """Returns all matrices in fp32."""
        stacked = torch.empty(self.shape)
        for index, matrix in enumerate(self.matrices):
            stacked[index] = matrix.read()
        return stacked

    def select(self, index: int) -> QuantizedWeight:
        """Returns one matrix."""
        return self.matrices[index]


class FusedWeight(QuantizedWeight):
    """Stored matrices that are concatenated along `axis`."""

    def __init__(self, parts: Sequence[QuantizedWeight], axis: int) -> None:
        self.parts, self._axis = list(parts), axis
        shape = list(self.parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in self.parts)
        super().__init__(shape, self.parts[0].bits)

    def dequantize(self) -> Tensor:
        """Returns the matrix in fp32."""
        return torch.cat([part.read() for part in self.parts], self._axis)


def stack_weights(weights: Sequence[QuantizedWeight]) -> FusedExpertsWeight:
    """Returns matrices of one shape as one weight."""
    return FusedExpertsWeight([FusedWeight([weight], 0) for weight in weights])


def concatenate_stacks(stacks: Sequence[FusedExpertsWeight], axis: int) -> FusedExpertsWeight:
    """Returns stacks of as many matrices as one stack, whose matrices are concatenated along `axis` of a matrix."""
    groups = zip(*(stack.matrices for stack in stacks), strict=True)
    return FusedExpertsWeight([FusedWeight(group, axis) for group in groups])
