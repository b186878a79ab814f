"""Keys and values in pages: one memory for all sequences, given out in blocks of :data:`PAGE` tokens.

A sequence names its pages in order. Two that begin alike name the same ones, until one of them writes into one: then
it gets a copy of its own. So a cache is read again without copying it, and one call can attend for many sequences.
"""

import weakref
from array import array
from typing import NamedTuple

import torch
from torch import Tensor

from antiphon.engine.cache.contiguous import GRAIN, KV, rounded

PAGE = GRAIN
"""Tokens of a page."""

NOBODYS = 0
"""The page into which rows write that only fill up a batch."""


class Pages:
    """``count`` pages for each of ``layers`` layers, which must all have keys and values of the same shape.

    The memory itself is there from the first write on, or from the beginning in an :meth:`enlarged` one.
    """

    def __init__(self, layers: int, count: int) -> None:
        self.layers = layers
        self._users = [0] * count
        self._free = list(range(count - 1, NOBODYS, -1))
        self._held: tuple[Tensor, ...] = ()

    @property
    def free(self) -> int:
        """Pages that nobody has."""
        return len(self._free)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes over all layers; 0 before the first write."""
        return sum(half[:, 0, 0].numel() * half.element_size() for half in self._held)

    def enlarged(self, count: int) -> "Pages":
        """An empty one of another size, for the same layers; its memory is taken at once."""
        twin = Pages(self.layers, count)
        twin._held = tuple(half.new_empty((half.shape[0], count, *half.shape[2:])) for half in self._held)
        for half in twin._held:
            half[:, NOBODYS] = 0
        return twin

    def take(self, count: int) -> list[int]:
        """So many pages for one user. Raises ``MemoryError`` if there are fewer.

        They are empty: what a masked place holds counts for nothing in attention unless it is no number.
        """
        if count > len(self._free):
            raise MemoryError(f"{count} pages of the cache are wanted, {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._users[page] = 1
        for half in self._held:
            half.index_fill_(1, torch.tensor(taken, device=half.device), 0)
        return taken

    def share(self, pages: "array[int]") -> None:
        """One more has these."""
        for page in pages:
            self._users[page] += 1

    def drop(self, pages: "array[int]") -> None:
        """One fewer has these."""
        for page in pages:
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)

    def shared(self, page: int) -> bool:
        """Whether more than one has it."""
        return self._users[page] > 1

    def twin(self, page: int) -> int:
        """A page with the same contents that nobody else has. Raises ``MemoryError``."""
        (new,) = self.take(1)
        for half in self._held:
            half[:, new] = half[:, page]
        return new

    def write(self, layer: int, places: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> None:
        """Keys and values (n, kv_heads, head_dim) to n places: their pages and where in these, both (n,)."""
        if not self._held:
            self._held = tuple(_empty(new, self.layers, len(self._users)) for new in (keys, values))
        for half, new in zip(self._held, (keys, values), strict=True):
            if half.shape[3:] != new.shape[1:] or half.dtype != new.dtype:
                raise ValueError("its layers hold keys and values of different shapes")
            half[layer].index_put_(places, new)

    def read(self, layer: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """What the pages of a table (rows, n) hold, each (rows, kv_heads, n * PAGE, head_dim)."""
        keys, values = (
            half[layer].index_select(0, table.flatten()).view(len(table), -1, *half.shape[3:]).transpose(1, 2)
            for half in self._held
        )
        return keys, values


class _Moment(NamedTuple):
    """Where a pass writes that leads from one length to another: one for all layers."""

    length: int
    end: int
    places: tuple[Tensor, Tensor]
    table: Tensor


class PagedKV(KV):
    """One sequence's pages. Their memory is given back when nobody holds this object any more."""

    def __init__(self, pages: Pages, expected: int = 0) -> None:
        super().__init__(rounded(expected))
        self._pages = pages
        self.table = array("q")
        self._moment: _Moment | None = None
        weakref.finalize(self, pages.drop, self.table).atexit = False

    def reserve(self, tokens: int) -> None:
        """As :meth:`KV.reserve`; whole pages."""
        super().reserve(rounded(tokens))

    def reach(self, end: int) -> None:
        """Have pages up to ``end`` tokens, and those after the valid tokens alone. Raises ``MemoryError``."""
        self.reserve(end)
        missing = self._capacity // PAGE - len(self.table)
        if missing > 0:
            self.table.extend(self._pages.take(missing))
        for place in range(self.length // PAGE, -(-end // PAGE)):
            old = self.table[place]
            if self._pages.shared(old):
                self.table[place] = self._pages.twin(old)
                self._pages.drop(array("q", [old]))

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`KV.extend`; what it gives is copied out of the pages."""
        end = self.length + keys.shape[2]
        moment = self._moment
        if moment is None or moment[:2] != (self.length, end):
            moment = self._moment = self._at(end, keys.device)
        self._pages.write(layer, moment.places, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        all_keys, all_values = self._pages.read(layer, moment.table)
        return all_keys[:, :, :end], all_values[:, :, :end]

    def _at(self, end: int, device: torch.device) -> _Moment:
        self.reach(end)
        table = torch.tensor(self.table[: -(-end // PAGE)], device=device)
        written = torch.arange(self.length, end, device=device)
        return _Moment(self.length, end, (table[written // PAGE], written % PAGE), table[None])

    @torch.inference_mode()
    def copy(self, length: int, capacity: int) -> "PagedKV":
        """As :meth:`KV.copy`, of which both have the pages; each copies one when it writes there."""
        twin = PagedKV(self._pages, max(length, capacity))
        twin.length = min(self.length, length)
        twin.table.extend(self.table[: -(-twin.length // PAGE)])
        self._pages.share(twin.table)
        self._moment = None
        return twin

    def shrink(self, length: int) -> None:
        """As :meth:`KV.shrink`."""
        self.truncate(length)
        self._capacity = rounded(self.length)
        self._moment = None
        kept = self._capacity // PAGE
        self._pages.drop(self.table[kept:])
        del self.table[kept:]

    @property
    def bytes_per_token(self) -> int:
        """As :attr:`KV.bytes_per_token`."""
        return self._pages.bytes_per_token


def _empty(like: Tensor, layers: int, count: int) -> Tensor:
    return like.new_zeros((layers, count, PAGE, *like.shape[1:]))
