"""The weight of a layer in a quantized checkpoint: the tensors of the file, decoded when they are asked for."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class GroupedLevels(NamedTuple):
    """A weight (outputs, inputs) as whole numbers: `scales · (levels - zeros)`.

    `levels` is int8; scales and zeros are fp32 (outputs, groups), a group being inputs / groups consecutive inputs.
    `zeros` is None if all are 0. Column i belongs to input `input_order[i]` of the layer, or to input i if that is
    None. `bits`: of a level, so that it is at least -2 ** (bits - 1) and less than 2 ** (bits - 1).
    """

    bits: int
    levels: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    input_order: Tensor | None = None

    @property
    def group_inputs(self) -> int:
        """Inputs of a group."""
        return self.levels.shape[1] // self.scales.shape[1]

    def dequantize(self) -> Tensor:
        """Returns the weight (outputs, inputs) in fp32."""
        outputs, inputs = self.levels.shape
        weight = self.levels.float().view(outputs, -1, self.group_inputs)
        if self.zeros is not None:
            weight.sub_(self.zeros[..., None])
        weight = weight.mul_(self.scales[..., None]).view(outputs, inputs)
        if self.input_order is None:
            return weight
        return torch.empty_like(weight).index_copy_(1, self.input_order, weight)


class QuantizedWeight(ABC):
    """A weight of a quantized checkpoint.

    `shape` is that of the weight, `bits` are those of an element. `tensors` of the file store it; `release`
    gives their pages back to the system.
    """

    def __init__(self, shape: Sequence[int], bits: int, *tensors: Tensor | None) -> None:
        self.shape, self.bits = torch.Size(shape), bits
        self.tensors = [tensor for tensor in tensors if tensor is not None]
        self.release: Callable[[], None] = _keep_pages

    @abstractmethod
    def dequantize(self) -> Tensor:
        """Returns the weight in fp32."""

    def read(self) -> Tensor:
        """Returns the weight in fp32, and gives back the pages that it was read from."""
        weight = self.dequantize()
        self.release()
        return weight

    def read_levels(self) -> GroupedLevels | None:
        """Returns the weight as whole numbers; None if the format stores something else."""
        return None

    @property
    def has_rows(self) -> bool:
        """True if `read_rows` reads rows of the weight without the others."""
        return False

    def read_rows(self, rows: Tensor) -> Tensor:
        """Returns some rows in fp32."""
        return self.dequantize()[rows]

    def select(self, index: int) -> "QuantizedWeight | None":  # noqa: ARG002  for subclasses
        """Returns one matrix of several; None if the weight is a matrix itself."""
        return None


def _keep_pages() -> None:
    """Does nothing. `QuantizedWeight.release` where pages cannot be given back."""


class IntegerWeight(QuantizedWeight):
    """A weight that is stored as whole numbers."""

    @abstractmethod
    def read_levels(self) -> GroupedLevels:
        """Returns the weight as whole numbers."""

    def dequantize(self) -> Tensor:
        """Returns the weight in fp32."""
        return self.read_levels().dequantize()


def order_by_group(group_index: Tensor | None, groups: int) -> Tensor | None:
    """Returns the inputs ordered by group; None if they are in order. `group_index`: the group of each input.

    Raises `ValueError` if groups differ in size.
    """
    if group_index is None or int(group_index[0]) < 0:
        return None
    index = group_index.long()
    if not bool((torch.bincount(index, minlength=groups) * groups == len(index)).all()):
        raise ValueError("the groups of inputs differ in size")
    order = index.argsort(stable=True)
    return None if torch.equal(order, torch.arange(len(order))) else order


def drop_zeros(zeros: Tensor) -> Tensor | None:
    """Returns None if all zero points are 0, else the zero points."""
    return zeros if bool(zeros.any()) else None
