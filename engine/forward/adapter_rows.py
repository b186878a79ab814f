"""Which rows of a pass belong to which adapter."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from antiphon.engine.forward.adapter_weights import LoadedAdapter
from antiphon.engine.forward.interface import SequenceInput


class RowGroup(NamedTuple):
    """The rows of one adapter: a range, or indices if they are not consecutive.

    `ranges` are the first row and the number of rows of each range; None for all rows.
    """

    adapter: LoadedAdapter
    rows: slice | Tensor
    ranges: tuple[tuple[int, int], ...] | None = None


class AdapterRows:
    """The groups of the pass that runs now. The layers read them, the forward pass sets them.

    `groups` are rows of all tokens, `head_groups` rows of the logits. Rows in no group belong to the base model.
    """

    def __init__(self) -> None:
        self.groups: tuple[RowGroup, ...] = ()
        self.head_groups: tuple[RowGroup, ...] = ()
        self.tables: dict[tuple[str, bool, int], array[int]] = {}
        """Tables of the groups by layer and number of rows, as the kernel reads them; valid until the groups change."""
        self._last: tuple[Sequence[LoadedAdapter | None], Sequence[int]] | None = None
        self._last_groups: tuple[tuple[RowGroup, ...], tuple[RowGroup, ...]] = ((), ())
        self.one_pass = True
        """False if rows of the base model would get other bits in a pass with adapters than in a pass without."""
        self.is_forced = False
        """True to compute a pass without adapters as one with adapters is computed, for a comparison."""

    @property
    def is_active(self) -> bool:
        """True in a pass with adapters: layers that are fused into one kernel call run one by one."""
        return bool(self.groups) or self.is_forced

    def begin(self, adapters: Sequence[LoadedAdapter | None], logit_rows: Sequence[int], device: torch.device) -> None:
        """Begins a pass over rows with these adapters, whose head computes the `logit_rows`."""
        if self._last != (adapters, logit_rows):  # steps that generate one token each have the same rows
            self.forget()
            groups = group_rows(adapters, device)
            head_groups = group_rows([adapters[row] for row in logit_rows], device) if groups else ()
            self._last, self._last_groups = (adapters, logit_rows), (groups, head_groups)
        self.groups, self.head_groups = self._last_groups

    def begin_sequence(self, adapter: LoadedAdapter | None) -> None:
        """Begins a pass whose rows all have the same adapter."""
        self.forget()
        self.groups = self.head_groups = () if adapter is None else (RowGroup(adapter, slice(None)),)

    def forget(self) -> None:
        """Forgets the groups of the last pass, so that they keep no unloaded adapter in memory."""
        self._last, self._last_groups = None, ((), ())
        self.tables.clear()

    def clear(self) -> None:
        """Ends the pass."""
        self.groups = self.head_groups = ()


def group_rows(adapters: Sequence[LoadedAdapter | None], device: torch.device) -> tuple[RowGroup, ...]:
    """Returns the groups of rows whose adapters are these."""
    indices: dict[int, list[int]] = {}
    by_number: dict[int, LoadedAdapter] = {}
    for row, adapter in enumerate(adapters):
        if adapter is not None:
            indices.setdefault(adapter.number, []).append(row)
            by_number[adapter.number] = adapter
    if len(indices) == 1 and None not in adapters:
        (adapter,) = by_number.values()
        return (RowGroup(adapter, slice(None)),)  # mixers run with some of the rows at a time
    groups = []
    for number, rows in indices.items():
        ranges = tuple(_find_ranges(rows))
        selected = slice(rows[0], rows[-1] + 1) if len(ranges) == 1 else torch.tensor(rows, device=device)
        groups.append(RowGroup(by_number[number], selected, ranges))
    return tuple(groups)


def _find_ranges(rows: list[int]) -> Iterator[tuple[int, int]]:
    """Yields the first row and the number of rows of each range of consecutive rows: 1, 2, 5 → (1, 2), (5, 1)."""
    first = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index] != rows[index - 1] + 1:
            yield rows[first], index - first
            first = index


def run_apart(
    run: Callable[[list[SequenceInput]], Tensor], inputs: list[SequenceInput], *, by_adapter: bool = False
) -> Tensor:
    """Runs the base model's sequences in one pass and those with adapters in another; returns logits in order.

    With `by_adapter`, each adapter gets a pass of its own.
    """
    parts: dict[int, list[SequenceInput]] = {}
    for item in inputs:
        number = 0 if item.adapter is None else item.adapter.number
        parts.setdefault(number if by_adapter else min(number, 1), []).append(item)
    if len(parts) < 2:
        return run(inputs)
    logits: dict[int, Tensor] = {}
    for _, part in sorted(parts.items()):
        counts = [item.num_logits for item in part]
        logits.update(zip(map(id, part), torch.split(run(part), counts), strict=True))
    return torch.cat([logits[id(item)] for item in inputs])
