"""Adds the products of the adapters of a pass to the output of a layer."""

from array import array

import torch
from torch import Tensor

from antiphon.engine.forward.adapter_rows import AdapterRows, RowGroup
from antiphon.engine.kernels.lora import LoraKernel, describe_group


class AdapterProducts:
    """Computes the products of all adapters of a pass, layer by layer. Rows of the base model are not written.

    With a `kernel`, one call computes a layer's products of all adapters; without, torch computes one adapter after
    the other. An adapter's matrices are stored for one of both, so the kernel is set before any adapter is built.
    """

    def __init__(self, rows: AdapterRows) -> None:
        self.rows = rows
        self.kernel: LoraKernel | None = None

    def add(self, layer: str, x: Tensor, output: Tensor, *, is_head: bool = False) -> None:
        """Adds to output (…, outputs) in place; x (…, inputs) is the input of the same rows."""
        groups = self.rows.head_groups if is_head else self.rows.groups
        if not groups:
            return
        x, output = x.reshape(-1, x.shape[-1]), output.view(-1, output.shape[-1])
        apart = [group for group in groups if not self._is_in_table(group, layer)]
        if len(apart) < len(groups):
            assert self.kernel is not None
            self.kernel.add_products(x, output, self._find_table(layer, groups, len(x)))
        for group in apart:
            weight = group.adapter.weights.get(layer)
            if weight is not None:
                _add_rows(output, group.rows, weight(x[group.rows]))

    def _is_in_table(self, group: RowGroup, layer: str) -> bool:
        weight = group.adapter.weights.get(layer)
        return weight is not None and weight.matrices is not None

    def _find_table(self, layer: str, groups: tuple[RowGroup, ...], num_rows: int) -> "array[int]":
        """Returns the kernel's table of groups. Steps of the same sequences share it."""
        key = (layer, groups is self.rows.head_groups, num_rows)
        table = self.rows.tables.get(key)
        if table is None:
            table = array("q")
            for group in groups:
                weight = group.adapter.weights.get(layer)
                if weight is None or weight.matrices is None:
                    continue
                for first, count in group.ranges or ((0, num_rows),):
                    table.extend(describe_group(first, count, weight.matrices))
            self.rows.tables[key] = table
        return table


def _add_rows(output: Tensor, rows: "slice | Tensor", product: Tensor) -> None:
    """Adds a product to some rows of a tensor (rows, columns), in place."""
    product = product.to(output.dtype)
    if isinstance(rows, slice):
        output[rows].add_(product)
    else:
        assert isinstance(rows, torch.Tensor)
        output.index_add_(0, rows, product)
