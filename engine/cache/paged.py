"""Keys and values in pages: one memory for all sequences, given out in blocks of :data:`PAGE` tokens.

A sequence names its pages in order. Two that begin alike name the same ones, until one of them writes into one: then
it gets a copy of its own. So a cache is read again without copying it, and one call can attend for many sequences.
"""

import weakref
from array import array
from typing import NamedTuple

import torch
from torch import Tensor

from antiphon.engine.cache.base import CAPACITY_STEP_TOKENS, KVCache, round_capacity

PAGE_TOKENS = CAPACITY_STEP_TOKENS
"""Tokens of a page."""

NULL_PAGE = 0
"""The page into which rows write that only fill up a batch."""


class PagePool:
    """``count`` pages for each of ``layers`` layers, which must all have keys and values of the same shape.

    The memory itself is there from the first write on, or from the beginning in an :meth:`enlarged` one.
    """

    def __init__(self, layers: int, count: int) -> None:
        self.layers = layers
        self._ref_counts = [0] * count
        self._free_pages = list(range(count - 1, NULL_PAGE, -1))
        self._buffers: tuple[Tensor, ...] = ()

    @property
    def num_free(self) -> int:
        """Pages that nobody has."""
        return len(self._free_pages)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes over all layers; 0 before the first write."""
        return sum(half[:, 0, 0].numel() * half.element_size() for half in self._buffers)

    def resized(self, count: int) -> "PagePool":
        """An empty one of another size, for the same layers; its memory is taken at once."""
        twin = PagePool(self.layers, count)
        twin._buffers = tuple(half.new_empty((half.shape[0], count, *half.shape[2:])) for half in self._buffers)
        for half in twin._buffers:
            half[:, NULL_PAGE] = 0
        return twin

    def allocate(self, count: int) -> list[int]:
        """So many pages for one user. Raises ``MemoryError`` if there are fewer.

        They are empty: what a masked place holds counts for nothing in attention unless it is no number.
        """
        if count > len(self._free_pages):
            raise MemoryError(f"{count} pages of the cache are wanted, {len(self._free_pages)} are free")
        taken = [self._free_pages.pop() for _ in range(count)]
        for page in taken:
            self._ref_counts[page] = 1
        for half in self._buffers:
            half.index_fill_(1, torch.tensor(taken, device=half.device), 0)
        return taken

    def add_refs(self, pages: "array[int]") -> None:
        """One more has these."""
        for page in pages:
            self._ref_counts[page] += 1

    def drop_refs(self, pages: "array[int]") -> None:
        """One fewer has these."""
        for page in pages:
            self._ref_counts[page] -= 1
            if not self._ref_counts[page]:
                self._free_pages.append(page)

    def is_shared(self, page: int) -> bool:
        """Whether more than one has it."""
        return self._ref_counts[page] > 1

    def copy_page(self, page: int) -> int:
        """A page with the same contents that nobody else has. Raises ``MemoryError``."""
        (new,) = self.allocate(1)
        for half in self._buffers:
            half[:, new] = half[:, page]
        return new

    def write_tokens(self, layer: int, places: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> None:
        """Keys and values (n, kv_heads, head_dim) to n places: their pages and where in these, both (n,)."""
        if not self._buffers:
            self._buffers = tuple(_allocate_zeros(new, self.layers, len(self._ref_counts)) for new in (keys, values))
        for half, new in zip(self._buffers, (keys, values), strict=True):
            if half.shape[3:] != new.shape[1:] or half.dtype != new.dtype:
                raise ValueError("its layers hold keys and values of different shapes")
            half[layer].index_put_(places, new)

    def gather_pages(self, layer: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """What the pages of a table (rows, n) hold, each (rows, kv_heads, n * PAGE, head_dim)."""
        keys, values = (
            half[layer].index_select(0, table.flatten()).view(len(table), -1, *half.shape[3:]).transpose(1, 2)
            for half in self._buffers
        )
        return keys, values


class _WritePlan(NamedTuple):
    """Where a pass writes that leads from one length to another: one for all layers."""

    length: int
    end: int
    slots: tuple[Tensor, Tensor]
    table: Tensor


class PagedKVCache(KVCache):
    """One sequence's pages. Their memory is given back when nobody holds this object any more."""

    def __init__(self, pages: PagePool, expected: int = 0) -> None:
        super().__init__(round_capacity(expected))
        self._pool = pages
        self.table = array("q")
        self._write_plan: _WritePlan | None = None
        weakref.finalize(self, pages.drop_refs, self.table).atexit = False

    def reserve(self, tokens: int) -> None:
        """As :meth:`KV.reserve`; whole pages."""
        super().reserve(round_capacity(tokens))

    def ensure_pages(self, end: int) -> None:
        """Have pages up to ``end`` tokens, and those after the valid tokens alone. Raises ``MemoryError``."""
        self.reserve(end)
        missing = self._capacity // PAGE_TOKENS - len(self.table)
        if missing > 0:
            self.table.extend(self._pool.allocate(missing))
        for place in range(self.length // PAGE_TOKENS, -(-end // PAGE_TOKENS)):
            old = self.table[place]
            if self._pool.is_shared(old):
                self.table[place] = self._pool.copy_page(old)
                self._pool.drop_refs(array("q", [old]))

    def write_and_read(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`KV.extend`; what it gives is copied out of the pages."""
        end = self.length + keys.shape[2]
        moment = self._write_plan
        if moment is None or moment[:2] != (self.length, end):
            moment = self._write_plan = self._plan_write(end, keys.device)
        self._pool.write_tokens(layer, moment.slots, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        all_keys, all_values = self._pool.gather_pages(layer, moment.table)
        return all_keys[:, :, :end], all_values[:, :, :end]

    def _plan_write(self, end: int, device: torch.device) -> _WritePlan:
        self.ensure_pages(end)
        table = torch.tensor(self.table[: -(-end // PAGE_TOKENS)], device=device)
        written = torch.arange(self.length, end, device=device)
        return _WritePlan(self.length, end, (table[written // PAGE_TOKENS], written % PAGE_TOKENS), table[None])

    @torch.inference_mode()
    def copy(self, length: int, capacity: int) -> "PagedKVCache":
        """As :meth:`KV.copy`, of which both have the pages; each copies one when it writes there."""
        twin = PagedKVCache(self._pool, max(length, capacity))
        twin.length = min(self.length, length)
        twin.table.extend(self.table[: -(-twin.length // PAGE_TOKENS)])
        self._pool.add_refs(twin.table)
        self._write_plan = None
        return twin

    def shrink(self, length: int) -> None:
        """As :meth:`KV.shrink`."""
        self.truncate(length)
        self._capacity = round_capacity(self.length)
        self._write_plan = None
        kept = self._capacity // PAGE_TOKENS
        self._pool.drop_refs(self.table[kept:])
        del self.table[kept:]

    @property
    def bytes_per_token(self) -> int:
        """As :attr:`KV.bytes_per_token`."""
        return self._pool.bytes_per_token


def _allocate_zeros(like: Tensor, layers: int, count: int) -> Tensor:
    return like.new_zeros((layers, count, PAGE_TOKENS, *like.shape[1:]))
