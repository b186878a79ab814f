"""A model without weights whose next token depends only on the tokens that it reads from the KV cache.

A cache that holds a wrong, an extra or a missing token therefore changes the output.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from antiphon.engine.cache.base import KVCache
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.cache.paged import PAGE_TOKENS, PagedKVCache, PagePool
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.protocol import EngineInfo, Job
from antiphon.engine.scheduler.core import Core
from tests.engine.tiny_models import generate_tokens

VOCAB_SIZE = 50

NextToken = Callable[[list[int]], int]
"""Returns the most likely token after a history."""


def next_token_by_hash(history: list[int]) -> int:
    """Returns a pseudo-random token that depends on every token of the history."""
    return random.Random(repr(history)).randrange(3, VOCAB_SIZE)


class FakeModel:
    """Returns logits that favor one token; the others are noise that depends on the history.

    `now` is a clock that each pass advances by `base_time + time_per_token * tokens`. `passes` lists, for each
    pass, the number of tokens and of logit rows of every sequence. With `pages`, caches are paged.
    """

    supports_chunked_prefill = True
    prompt_alignment = 1
    max_num_seqs: int | None = None
    supports_drafts = True
    state_tokens = 0

    def __init__(self, next_token: NextToken = next_token_by_hash, pages: PagePool | None = None) -> None:
        self.next_token = next_token
        self.pages = pages
        self.is_paged = pages is not None
        self.passes: list[list[tuple[int, int]]] = []
        self.now = 0.0
        self.base_time = 1.0
        self.time_per_token = 0.0
        self.fails = False

    def new_cache(self, expected: int) -> KVCache:
        return ContiguousKVCache(expected) if self.pages is None else PagedKVCache(self.pages, expected)

    def run(self, work: list[SequenceInput]) -> Tensor:
        self.passes.append([(len(item.ids), item.num_logits) for item in work])
        self.now += self.base_time + self.time_per_token * sum(len(item.ids) for item in work)
        rows = [row for item in work for row in self._run_sequence(item)]
        if self.fails:
            raise ZeroDivisionError
        for item in work:
            item.cache.commit(len(item.ids))
        return torch.stack(rows) if rows else torch.empty(0, VOCAB_SIZE)

    def _run_sequence(self, item: SequenceInput) -> list[Tensor]:
        ids = torch.tensor(item.ids, dtype=torch.float32).reshape(1, 1, -1, 1)
        keys, negated = item.cache.write_and_read(0, ids, -ids)
        history = [int(token) for token in keys[0, 0, :, 0].tolist()]
        assert history == [-int(token) for token in negated[0, 0, :, 0].tolist()]
        return [self.logits_after(history[: len(history) - later]) for later in reversed(range(item.num_logits))]

    def logits_after(self, history: list[int]) -> Tensor:
        generator = torch.Generator().manual_seed(random.Random(repr(history)).getrandbits(40))
        row = torch.rand(VOCAB_SIZE, generator=generator)
        row[self.next_token(history)] += 2.0
        return row


def build_core_with_fake_model(
    next_token: NextToken = next_token_by_hash, *, max_model_len: int = 1000, paged: bool = False, **options: Any
) -> tuple[Core, FakeModel]:
    """Returns a core on a `FakeModel`, and the model. `options` are those of `Core`.

    A paged pool has just enough pages for `max_cache_tokens`.
    """
    max_num_seqs = options.get("max_num_seqs", 32)
    num_pages = -(-options.get("max_cache_tokens", max_num_seqs * max_model_len) // PAGE_TOKENS) + max_num_seqs + 1
    model = FakeModel(next_token, PagePool(1, num_pages) if paged else None)
    info = EngineInfo(max_model_len=max_model_len, vocab_size=VOCAB_SIZE, eos_ids=(2,))
    return Core(model, info, clock=lambda: model.now, **options), model


def generate_without_reuse(job: Job, **options: Any) -> list[int]:
    """Returns the job's tokens from a core of its own, without prefix caching and without drafts."""
    core, _ = build_core_with_fake_model(enable_prefix_caching=False, max_draft_seqs=0, **options)
    return generate_tokens(core, job)


def make_tokens(count: int, start: int = 0) -> list[int]:
    """Returns `count` tokens. Sequences whose `start` differs by less than 40 have no common prefix."""
    return [3 + (start * 7 + 13 * n * n + 5 * n) % 40 for n in range(count)]
