"""One new token of each of several sequences, whose pages are read together: what most steps consist of.

Everything is computed on the device from two tables of fixed shape, so that a step can be recorded and played again
with other contents (:mod:`engine.model.cuda_graphs`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from antiphon.engine.cache.contiguous import additive
from antiphon.engine.cache.paged import NOBODYS, PAGE, PagedKV, Pages

NARROWEST = 16
"""Columns of the narrowest table: 256 tokens."""

MOST = 1 << 17
"""Tokens, filled up ones included, that one batch reads at most: so many are copied out of the pages in each layer."""


class View(NamedTuple):
    """What a layer reads: ``table`` (rows, n) of pages, and an additive ``mask`` (rows, 1, 1, n * PAGE)."""

    table: Tensor
    mask: Tensor


class Batch:
    """``table`` (rows, columns) names the pages of each sequence, ``positions`` (rows,) where its new token stands.

    ``dtype`` is the model's. Rows that only fill up have position 0 in nobody's page.
    """

    def __init__(self, pages: Pages, table: Tensor, positions: Tensor, dtype: torch.dtype) -> None:
        self._pages = pages
        self._table = table
        self._positions = positions
        self._dtype = dtype
        self._places = (table.gather(1, (positions // PAGE)[:, None])[:, 0], positions % PAGE)
        self._views: dict[int | None, View] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor, view: View) -> tuple[Tensor, Tensor]:
        """Write (1, kv_heads, rows, head_dim), a token for each; what they see, (rows, kv_heads, n, head_dim)."""
        self._pages.write(layer, self._places, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        return self._pages.read(layer, view.table)

    def view(self, window: int | None) -> View:
        """What layers see that look back over so many tokens, or without limit. Built once for all of them."""
        if window not in self._views:
            self._views[window] = self._view(window)
        return self._views[window]

    def _view(self, window: int | None) -> View:
        last = self._positions[:, None]
        columns = self._table.shape[1]
        table, first, count = self._table, torch.zeros_like(last), columns
        if window is not None and (needed := _spanned(window)) < columns:
            first, count = (last - window + 1).clamp_min(0) // PAGE, needed
            table = table.gather(1, (first + torch.arange(count, device=last.device)).clamp_max(columns - 1))
        places = first * PAGE + torch.arange(count * PAGE, device=last.device)
        allowed = places <= last
        if window is not None:
            allowed &= places > last - window
        return View(table, additive(allowed, self._dtype)[:, None, None])


def _spanned(window: int) -> int:
    """Over how many pages so many tokens in a row may be spread."""
    return (window + PAGE - 2) // PAGE + 1


def tables(kvs: Sequence[PagedKV], rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """``table`` and ``positions`` of a batch with one more token of each, filled up to this size."""
    table = np.full((rows, columns), NOBODYS, np.int64)
    positions = np.zeros(rows, np.int64)
    for row, kv in enumerate(kvs):
        kv.reach(kv.length + 1)
        count = columns_of(kv)
        table[row, :count] = np.frombuffer(kv.table, np.int64, count)
        positions[row] = kv.length
    return table, positions


def columns_of(kv: PagedKV) -> int:
    """Pages that it will have used when it holds one more token."""
    return kv.length // PAGE + 1


def size(count: int, least: int = 1) -> int:
    """The next of the sizes to which batches and tables are filled up: 1, 2, 3, 4, 6, 8, 12, 16, … times ``least``."""
    units = -(-count // least)
    power = 1 << (units - 1).bit_length()
    return least * (power * 3 // 4 if power >= 4 and units <= power * 3 // 4 else power)


def grouped(kvs: Sequence[PagedKV]) -> list[tuple[list[int], int]]:
    """Sequences of about the same length together: their numbers, and how many columns their table needs."""
    groups: dict[int, list[int]] = {}
    for number, kv in enumerate(kvs):
        groups.setdefault(size(columns_of(kv), NARROWEST), []).append(number)
    result = []
    for columns, members in sorted(groups.items()):
        most = max(MOST // (columns * PAGE), 1)
        result += [(members[begin : begin + most], columns) for begin in range(0, len(members), most)]
    return result
