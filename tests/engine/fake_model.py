"""A model without weights: what it says next is a function of the tokens it reads in the cache, and of nothing else.

A cache that holds a wrong token, one too many or one too few therefore changes what is said.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from antiphon.engine.cache.base import KVCache
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.cache.paged import PAGE_TOKENS, PagedKVCache, PagePool
from antiphon.engine.model.forward import SequenceInput
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scheduler.core import Core

VOCAB = 50

Next = Callable[[list[int]], int]
"""The likeliest token after a history."""


def scattered(history: list[int]) -> int:
    """Depends on every token of the history and looks random."""
    return random.Random(repr(history)).randrange(3, VOCAB)


class Rigged:
    """Logits: one favourite token, the rest noise that depends on the history. ``now`` is a clock that it winds.

    ``feeds`` holds of each pass the number of tokens and of rows of each sequence. With ``pages``, caches are paged.
    """

    supports_chunked_prefill = True
    prompt_alignment = 1

    def __init__(self, following: Next = scattered, pages: PagePool | None = None) -> None:
        self.following = following
        self.pages = pages
        self.is_paged = pages is not None
        self.feeds: list[list[tuple[int, int]]] = []
        self.now = 0.0
        self.base = 1.0
        self.per_token = 0.0
        self.broken = False

    def new_cache(self, expected: int) -> KVCache:
        return ContiguousKVCache(expected) if self.pages is None else PagedKVCache(self.pages, expected)

    def run(self, work: list[SequenceInput]) -> Tensor:
        self.feeds.append([(len(item.ids), item.num_logits) for item in work])
        self.now += self.base + self.per_token * sum(len(item.ids) for item in work)
        rows = [row for item in work for row in self._one(item)]
        if self.broken:
            raise ZeroDivisionError
        for item in work:
            item.cache.commit(len(item.ids))
        return torch.stack(rows) if rows else torch.empty(0, VOCAB)

    def _one(self, item: SequenceInput) -> list[Tensor]:
        ids = torch.tensor(item.ids, dtype=torch.float32).reshape(1, 1, -1, 1)
        read, again = item.cache.write_and_read(0, ids, -ids)
        history = [int(token) for token in read[0, 0, :, 0].tolist()]
        assert history == [-int(token) for token in again[0, 0, :, 0].tolist()]
        return [self._row(history[: len(history) - later]) for later in reversed(range(item.num_logits))]

    def _row(self, history: list[int]) -> Tensor:
        dice = torch.Generator().manual_seed(random.Random(repr(history)).getrandbits(40))
        row = torch.rand(VOCAB, generator=dice)
        row[self.following(history)] += 2.0
        return row


def rigged(
    following: Next = scattered, *, context: int = 1000, paged: bool = False, **options: Any
) -> tuple[Core, Rigged]:
    """A core on such a model, and the model; options are the core's own. ``paged``: with no page too many."""
    slots = options.get("max_num_seqs", 32)
    count = -(-options.get("max_cache_tokens", slots * context) // PAGE_TOKENS) + slots + 1
    forward = Rigged(following, PagePool(1, count) if paged else None)
    info = EngineInfo(max_model_len=context, vocab_size=VOCAB, eos_ids=(2,))
    return Core(forward, info, clock=lambda: forward.now, **options), forward
