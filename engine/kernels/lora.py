"""Python binding of the products of adapters."""

import ctypes
from array import array
from typing import NamedTuple

import torch
from torch import Tensor

from antiphon.engine.kernels.native_calls import count_threads, int64_fields, load_function, read_constant

GROUP_FIELDS = 6
"""Fields of `struct lora_group` of `lora.c`."""


class LoraArgs(ctypes.Structure):
    """`struct lora_args` of `lora.c`."""

    _fields_ = int64_fields("x x_stride inputs out out_stride outputs groups num_groups threads")


class LoraMatrices(NamedTuple):
    """The matrices of an adapter in one layer, in fp32: a (rank, inputs), b (rank, outputs), b already scaled."""

    a: Tensor
    b: Tensor


class LoraKernel:
    """The kernel of a loaded library. Raises `AttributeError` if the library lacks it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._lanes = read_constant(library, "lanes")
        self._ranks = read_constant(library, "lora_ranks")
        self._add = load_function(library, "lora", LoraArgs)

    def supports_layer(self, inputs: int, outputs: int) -> bool:
        """Tells whether `add_products` accepts a layer of these sizes."""
        return inputs % self._lanes == 0 and outputs % self._lanes == 0

    def pack_matrices(self, a: Tensor, b: Tensor, scale: float) -> LoraMatrices:
        """Returns A (rank, inputs) and B (outputs, rank) as the kernel reads them, with zeros up to a whole rank."""
        rank = -(-len(a) // self._ranks) * self._ranks
        packed = LoraMatrices(torch.zeros((rank, a.shape[1])), torch.zeros((rank, len(b))))
        packed.a[: len(a)] = a
        packed.b[: len(a)] = b.float().T * scale
        return packed

    def add_products(self, x: Tensor, out: Tensor, groups: "array[int]") -> None:
        """Adds the products to rows of out (rows, outputs), from the same rows of x (rows, inputs), in place.

        Elements of a row are contiguous. `groups` is a list of `describe_group`.
        """
        args = LoraArgs(
            x.data_ptr(),
            x.stride(0),
            x.shape[1],
            out.data_ptr(),
            out.stride(0),
            out.shape[1],
            groups.buffer_info()[0],
            len(groups) // GROUP_FIELDS,
            count_threads(),
        )
        self._add(args)


def describe_group(row: int, count: int, matrices: LoraMatrices) -> tuple[int, ...]:
    """Returns the fields of a group: `count` rows from `row` on. The caller keeps the matrices in memory."""
    return row, count, len(matrices.a), matrices.a.data_ptr(), matrices.b.data_ptr(), 0
