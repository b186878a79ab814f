"""A batch of sequences that decode one token each and whose pages are read together. Most steps consist of these.

Everything is computed on the device from two tables of fixed shape, so that a step can be captured as a CUDA graph and
replayed with other contents (`antiphon.engine.forward.cuda_graphs`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from antiphon.engine.cache.paged import NULL_PAGE, PAGE_TOKENS, PagedKVCache, PagePool
from antiphon.engine.forward.masks import additive_mask

MIN_TABLE_COLUMNS = 16
"""Columns of the narrowest table, in pages: 256 tokens."""

MAX_TOKENS_READ = 1 << 17
"""Maximum number of tokens, padding included, that a batch reads: each layer copies as many out of the pages."""


class BlockTableView(NamedTuple):
    """Pages that a layer reads, `table` (rows, n), and an additive `mask` (rows, 1, 1, n * PAGE_TOKENS)."""

    table: Tensor
    mask: Tensor


class DecodeBatch:
    """A batch on the device, one row per sequence.

    `table` (rows, columns) holds the pages of each sequence, `positions` (rows,) the positions of the new tokens.
    `dtype` is the model's. Padding rows have position 0 in `NULL_PAGE`.
    """

    def __init__(self, pages: PagePool, table: Tensor, positions: Tensor, dtype: torch.dtype) -> None:
        self._pages = pages
        self._table = table
        self._positions = positions
        self._dtype = dtype
        self._write_slots = (table.gather(1, (positions // PAGE_TOKENS)[:, None])[:, 0], positions % PAGE_TOKENS)
        self._views: dict[tuple[int | None, int | None], BlockTableView] = {}

    def write_and_read(self, layer: int, keys: Tensor, values: Tensor, view: BlockTableView) -> tuple[Tensor, Tensor]:
        """Writes one token per row (1, kv_heads, rows, head_dim). Returns the view (rows, kv_heads, n, head_dim)."""
        self._pages.write_tokens(layer, self._write_slots, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        return self._pages.gather_pages(layer, view.table)

    def view_for_window(self, window: int | None, chunk: int | None = None) -> BlockTableView:
        """The view of layers with a sliding window or chunks of that many tokens, or without limit.

        Built once for all layers.
        """
        if (window, chunk) not in self._views:
            self._views[window, chunk] = self._build_view(window, chunk)
        return self._views[window, chunk]

    def _build_view(self, window: int | None, chunk: int | None) -> BlockTableView:
        last = self._positions[:, None]
        columns = self._table.shape[1]
        table, first_page, count = self._table, torch.zeros_like(last), columns
        limit = window or chunk
        first_key = torch.zeros_like(last)
        if limit is not None:
            first_key = (last - limit + 1).clamp_min(0) if window is not None else last - last % limit
        if limit is not None and (needed := _max_pages_spanned(limit)) < columns:
            first_page, count = first_key // PAGE_TOKENS, needed
            table = table.gather(1, (first_page + torch.arange(count, device=last.device)).clamp_max(columns - 1))
        key_positions = first_page * PAGE_TOKENS + torch.arange(count * PAGE_TOKENS, device=last.device)
        allowed = (key_positions <= last) & (key_positions >= first_key)
        return BlockTableView(table, additive_mask(allowed, self._dtype)[:, None, None])


def _max_pages_spanned(window: int) -> int:
    """Largest number of pages that `window` consecutive tokens can touch."""
    return (window + PAGE_TOKENS - 2) // PAGE_TOKENS + 1


def build_tables(kvs: Sequence[PagedKVCache], rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Table and positions of a batch with one new token per sequence, padded to this size.

    Allocates the pages of the new tokens. Example, with pages of 16 tokens: a sequence of 20 tokens in pages 7 and 3
    writes to position 20, which is token 4 of page 3; its row of the table is [7, 3, 0, 0, …].
    """
    table = np.full((rows, columns), NULL_PAGE, np.int64)
    positions = np.zeros(rows, np.int64)
    for row, kv in enumerate(kvs):
        kv.ensure_pages(kv.length + 1)
        count = columns_needed(kv)
        table[row, :count] = np.frombuffer(kv.table, np.int64, count)
        positions[row] = kv.length
    return table, positions


def columns_needed(kv: PagedKVCache) -> int:
    """Number of pages that a sequence uses with one more token."""
    return kv.length // PAGE_TOKENS + 1


def bucket_size(count: int, minimum: int = 1) -> int:
    """Rounds up to a size to which batches and tables are padded: 1, 2, 3, 4, 6, 8, 12, 16, … times `minimum`."""
    units = -(-count // minimum)
    power = 1 << (units - 1).bit_length()
    return minimum * (power * 3 // 4 if power >= 4 and units <= power * 3 // 4 else power)


def bucket_by_length(kvs: Sequence[PagedKVCache]) -> list[tuple[list[int], int]]:
    """Groups sequences of similar length. Returns for each group the indices and the number of columns of its table."""
    groups: dict[int, list[int]] = {}
    for index, kv in enumerate(kvs):
        groups.setdefault(bucket_size(columns_needed(kv), MIN_TABLE_COLUMNS), []).append(index)
    result = []
    for columns, members in sorted(groups.items()):
        max_rows = max(MAX_TOKENS_READ // (columns * PAGE_TOKENS), 1)
        result += [(members[start : start + max_rows], columns) for start in range(0, len(members), max_rows)]
    return result
