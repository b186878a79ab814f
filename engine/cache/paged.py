"""A paged KV cache: one pool of memory for all sequences, allocated in pages of `PAGE_TOKENS` tokens.

The page table of a sequence lists its pages in order. Sequences with a common prefix share pages. A sequence that
writes into a shared page gets a copy of it first. A cached prefix is therefore reused without copying it, and one
attention call can serve many sequences.

Example with pages of 16 tokens: a sequence of 40 tokens has the table `[1, 2, 3]`. Its token 20 is in page
`table[20 // 16]` = 2, at offset `20 % 16` = 4. A copy of all 40 tokens has the same table. When the copy writes
token 40, page 3 is shared, so it is copied to the free page 4; the table of the copy is now `[1, 2, 4]`.
"""

import weakref
from array import array
from typing import NamedTuple

import torch
from torch import Tensor

from antiphon.engine.cache.base import CAPACITY_STEP_TOKENS, KVCache, round_capacity

PAGE_TOKENS = CAPACITY_STEP_TOKENS
"""Number of tokens in a page."""

NULL_PAGE = 0
"""Page that the padding rows of a batch write to. Never allocated to a sequence."""


class PagePool:
    """A pool of `count` pages for each of `layers` layers. Keys and values must have the same shape in all layers.

    The memory is allocated at the first write; a pool returned by `with_size` has its memory already.
    """

    def __init__(self, layers: int, count: int) -> None:
        self.layers = layers
        self._ref_counts = [0] * count
        self._free_pages = list(range(count - 1, NULL_PAGE, -1))
        self.buffers: tuple[Tensor, ...] = ()

    @property
    def num_free(self) -> int:
        """Number of free pages."""
        return len(self._free_pages)

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token over all layers; 0 before the first write."""
        return sum(buffer[:, 0, 0].numel() * buffer.element_size() for buffer in self.buffers)

    def with_size(self, count: int) -> "PagePool":
        """Returns an empty pool of another size for the same layers, with its memory allocated."""
        pool = PagePool(self.layers, count)
        pool.buffers = tuple(buffer.new_empty((buffer.shape[0], count, *buffer.shape[2:])) for buffer in self.buffers)
        for buffer in pool.buffers:
            buffer[:, NULL_PAGE] = 0
        return pool

    def allocate(self, count: int) -> list[int]:
        """Allocates `count` pages with one reference each. Raises `MemoryError` if fewer are free.

        The pages are zeroed, because attention ignores the contents of masked positions only if they are not NaN.
        """
        if count > len(self._free_pages):
            raise MemoryError(f"{count} KV cache pages requested, {len(self._free_pages)} are free")
        pages = [self._free_pages.pop() for _ in range(count)]
        for page in pages:
            self._ref_counts[page] = 1
        for buffer in self.buffers:
            buffer.index_fill_(1, torch.tensor(pages, device=buffer.device), 0)
        return pages

    def add_refs(self, pages: "array[int]") -> None:
        """Adds a reference to each of these pages."""
        for page in pages:
            self._ref_counts[page] += 1

    def drop_refs(self, pages: "array[int]") -> None:
        """Drops a reference to each of these pages and frees those without one."""
        for page in pages:
            self._ref_counts[page] -= 1
            if not self._ref_counts[page]:
                self._free_pages.append(page)

    def is_shared(self, page: int) -> bool:
        """Tells whether a page has more than one reference."""
        return self._ref_counts[page] > 1

    def copy_page(self, page: int) -> int:
        """Allocates a page with the same contents. Raises `MemoryError` if no page is free."""
        (new,) = self.allocate(1)
        for buffer in self.buffers:
            buffer[:, new] = buffer[:, page]
        return new

    def write_tokens(self, layer: int, slots: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> None:
        """Writes keys and values (n, kv_heads, head_dim) to n slots: `slots` holds pages and offsets, both (n,)."""
        if not self.buffers:
            self.buffers = tuple(_allocate_zeros(new, self.layers, len(self._ref_counts)) for new in (keys, values))
        for buffer, new in zip(self.buffers, (keys, values), strict=True):
            if buffer.shape[3:] != new.shape[1:] or buffer.dtype != new.dtype:
                raise ValueError("the layers have keys and values of different shapes or dtypes")
            buffer[layer].index_put_(slots, new)

    def gather_pages(self, layer: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values of the pages in `table` (rows, n): (rows, kv_heads, n * PAGE_TOKENS, head_dim)."""
        keys, values = (
            buffer[layer].index_select(0, table.flatten()).view(len(table), -1, *buffer.shape[3:]).transpose(1, 2)
            for buffer in self.buffers
        )
        return keys, values


class _WritePlan(NamedTuple):
    """Pages and slots of a pass that extends a cache from `length` to `end`; the same for all layers."""

    length: int
    end: int
    slots: tuple[Tensor, Tensor]
    table: Tensor


class PagedKVCache(KVCache):
    """The pages of one sequence. Their references are dropped when this object is garbage-collected."""

    def __init__(self, pool: PagePool, expected: int = 0) -> None:
        super().__init__(round_capacity(expected))
        self._pool = pool
        self.table = array("q")
        self._write_plan: _WritePlan | None = None
        weakref.finalize(self, pool.drop_refs, self.table).atexit = False

    def reserve(self, tokens: int) -> None:
        """Raises the capacity to at least `tokens`, rounded up to whole pages."""
        super().reserve(round_capacity(tokens))

    def ensure_pages(self, end: int) -> None:
        """Allocates pages up to `end` tokens and copies shared pages to be written. Raises `MemoryError`."""
        self.reserve(end)
        missing = self._capacity // PAGE_TOKENS - len(self.table)
        if missing > 0:
            self.table.extend(self._pool.allocate(missing))
        for index in range(self.length // PAGE_TOKENS, -(-end // PAGE_TOKENS)):
            page = self.table[index]
            if self._pool.is_shared(page):
                self.table[index] = self._pool.copy_page(page)
                self._pool.drop_refs(array("q", [page]))

    def write_and_read(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Writes as in `KVCache.write_and_read`. Returns copies out of the pages."""
        end = self.length + keys.shape[2]
        plan = self._write_plan
        if plan is None or plan[:2] != (self.length, end):
            plan = self._write_plan = self._plan_write(end, keys.device)
        self._pool.write_tokens(layer, plan.slots, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        all_keys, all_values = self._pool.gather_pages(layer, plan.table)
        return all_keys[:, :, :end], all_values[:, :, :end]

    def _plan_write(self, end: int, device: torch.device) -> _WritePlan:
        self.ensure_pages(end)
        table = torch.tensor(self.table[: -(-end // PAGE_TOKENS)], device=device)
        positions = torch.arange(self.length, end, device=device)
        return _WritePlan(self.length, end, (table[positions // PAGE_TOKENS], positions % PAGE_TOKENS), table[None])

    @torch.inference_mode()
    def copy(self, length: int, capacity: int) -> "PagedKVCache":
        """Returns a cache that shares its pages with this one; see `KVCache.copy`. Pages are copied on write."""
        clone = PagedKVCache(self._pool, max(length, capacity))
        clone.length = min(self.length, length)
        clone.table.extend(self.table[: -(-clone.length // PAGE_TOKENS)])
        self._pool.add_refs(clone.table)
        self._write_plan = None
        return clone

    def shrink(self, length: int) -> None:
        """Drops references to pages that the first `length` tokens do not need; see `KVCache.shrink`."""
        self.truncate(length)
        self._capacity = round_capacity(self.length)
        self._write_plan = None
        num_pages = self._capacity // PAGE_TOKENS
        self._pool.drop_refs(self.table[num_pages:])
        del self.table[num_pages:]

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token over all layers; 0 before the first write."""
        return self._pool.bytes_per_token


def _allocate_zeros(like: Tensor, layers: int, count: int) -> Tensor:
    return like.new_zeros((layers, count, PAGE_TOKENS, *like.shape[1:]))
