"""One new token of each of several sequences, whose pages are read together: what most steps consist of.

Everything is computed on the device from two tables of fixed shape, so that a step can be recorded and played again
with other contents (:mod:`engine.model.cuda_graphs`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from antiphon.engine.cache.paged import NULL_PAGE, PAGE_TOKENS, PagedKVCache, PagePool
from antiphon.engine.model.masks import additive_mask

MIN_TABLE_COLUMNS = 16
"""Columns of the narrowest table: 256 tokens."""

MAX_TOKENS_READ = 1 << 17
"""Tokens, filled up ones included, that one batch reads at most: so many are copied out of the pages in each layer."""


class BlockTableView(NamedTuple):
    """What a layer reads: ``table`` (rows, n) of pages, and an additive ``mask`` (rows, 1, 1, n * PAGE)."""

    table: Tensor
    mask: Tensor


class DecodeBatch:
    """``table`` (rows, columns) names the pages of each sequence, ``positions`` (rows,) where its new token stands.

    ``dtype`` is the model's. Rows that only fill up have position 0 in nobody's page.
    """

    def __init__(self, pages: PagePool, table: Tensor, positions: Tensor, dtype: torch.dtype) -> None:
        self._pages = pages
        self._table = table
        self._positions = positions
        self._dtype = dtype
        self._write_slots = (table.gather(1, (positions // PAGE_TOKENS)[:, None])[:, 0], positions % PAGE_TOKENS)
        self._views: dict[int | None, BlockTableView] = {}

    def write_and_read(self, layer: int, keys: Tensor, values: Tensor, view: BlockTableView) -> tuple[Tensor, Tensor]:
        """Write (1, kv_heads, rows, head_dim), a token for each; what they see, (rows, kv_heads, n, head_dim)."""
        self._pages.write_tokens(layer, self._write_slots, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        return self._pages.gather_pages(layer, view.table)

    def view_for_window(self, window: int | None) -> BlockTableView:
        """What layers see that look back over so many tokens, or without limit. Built once for all of them."""
        if window not in self._views:
            self._views[window] = self._build_view(window)
        return self._views[window]

    def _build_view(self, window: int | None) -> BlockTableView:
        last = self._positions[:, None]
        columns = self._table.shape[1]
        table, first, count = self._table, torch.zeros_like(last), columns
        if window is not None and (needed := _max_pages_spanned(window)) < columns:
            first, count = (last - window + 1).clamp_min(0) // PAGE_TOKENS, needed
            table = table.gather(1, (first + torch.arange(count, device=last.device)).clamp_max(columns - 1))
        places = first * PAGE_TOKENS + torch.arange(count * PAGE_TOKENS, device=last.device)
        allowed = places <= last
        if window is not None:
            allowed &= places > last - window
        return BlockTableView(table, additive_mask(allowed, self._dtype)[:, None, None])


def _max_pages_spanned(window: int) -> int:
    """Over how many pages so many tokens in a row may be spread."""
    return (window + PAGE_TOKENS - 2) // PAGE_TOKENS + 1


def build_tables(kvs: Sequence[PagedKVCache], rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """``table`` and ``positions`` of a batch with one more token of each, filled up to this size."""
    table = np.full((rows, columns), NULL_PAGE, np.int64)
    positions = np.zeros(rows, np.int64)
    for row, kv in enumerate(kvs):
        kv.ensure_pages(kv.length + 1)
        count = columns_needed(kv)
        table[row, :count] = np.frombuffer(kv.table, np.int64, count)
        positions[row] = kv.length
    return table, positions


def columns_needed(kv: PagedKVCache) -> int:
    """Pages that it will have used when it holds one more token."""
    return kv.length // PAGE_TOKENS + 1


def bucket_size(count: int, minimum: int = 1) -> int:
    """The next of the sizes to which batches and tables are filled up: 1, 2, 3, 4, 6, 8, 12, 16, … times ``least``."""
    units = -(-count // minimum)
    power = 1 << (units - 1).bit_length()
    return minimum * (power * 3 // 4 if power >= 4 and units <= power * 3 // 4 else power)


def bucket_by_length(kvs: Sequence[PagedKVCache]) -> list[tuple[list[int], int]]:
    """Sequences of about the same length together: their numbers, and how many columns their table needs."""
    groups: dict[int, list[int]] = {}
    for number, kv in enumerate(kvs):
        groups.setdefault(bucket_size(columns_needed(kv), MIN_TABLE_COLUMNS), []).append(number)
    result = []
    for columns, members in sorted(groups.items()):
        most = max(MAX_TOKENS_READ // (columns * PAGE_TOKENS), 1)
        result += [(members[begin : begin + most], columns) for begin in range(0, len(members), most)]
    return result
