"""LongRoPE, the rotary scaling of Phi-3 and Phi-4-mini: sequences beyond a limit rotate their tokens by other factors.

When a sequence passes the limit, `generate` computes all of its keys again. So does `LongRopeForward`, for
that sequence only; sequences on both sides of the limit run in one pass.
"""

from array import array
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.forward.attention import AttentionMetadata
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.kernels.bindings import Kernels

RECOMPUTING_TYPES = {"phi3", "phimoe", "phi4_multimodal"}
"""Model types whose `generate` computes all keys again at the limit. Others would mix keys of both kinds."""

PIECE_TOKENS = 512
"""Number of tokens that are computed again in one pass."""

LONG_ROWS: ContextVar[Tensor | None] = ContextVar("LONG_ROWS", default=None)
"""For each token of the row (n,), whether its sequence is beyond the limit. None outside of packed passes."""


class LongRopeCache(ContiguousKVCache):
    """A KV cache that knows the ids of its tokens, so that they can be computed again.

    `is_long` tells whether the keys are those of a sequence beyond the limit.
    """

    def __init__(self, expected: int = 0, *, fp16: bool = False) -> None:
        super().__init__(expected, fp16=fp16)
        self.ids = array("q")
        self.is_long = False

    def truncate(self, length: int) -> None:
        """Drops all but the first `length` tokens."""
        super().truncate(length)
        del self.ids[self.length :]

    def copy(self, length: int, capacity: int) -> "LongRopeCache":
        """Copies the first `length` tokens; see `KVCache.copy`."""
        clone = LongRopeCache(max(length, capacity), fp16=self.fp16)
        self.copy_buffers_to(clone, length)
        clone.ids, clone.is_long = self.ids[: clone.length], self.is_long
        return clone


class LongRopeForward(VarlenForward):
    """Runs all sequences as one row, each with the rotary factors of its length. Caches are contiguous everywhere."""

    def __init__(
        self, model: PreTrainedModel, windows: dict[int, int], limit: int, kernels: Kernels | None = None
    ) -> None:
        super().__init__(model, windows, None, kernels)
        self._limit = limit
        self._rotaries = find_long_rotaries(model)
        for module in self._rotaries:
            module.forward = LongRopeRotary(module.forward, limit)

    def detach(self) -> None:
        """Gives the model's rotary modules back to transformers."""
        for module in self._rotaries:
            del module.forward

    def new_cache(self, expected: int) -> LongRopeCache:
        """Returns an empty cache for a sequence that is expected to hold `expected` tokens."""
        return LongRopeCache(expected, fp16=self._fp16_cache)

    def run_pass(self, inputs: list[SequenceInput]) -> Tensor:
        """Runs one pass, or two if drafts reach beyond the limit, after recomputing the sequences that passed it."""
        heads, tails = zip(*(self._split_at_limit(item) for item in inputs), strict=True)
        logits = self._run_parts(list(heads))
        rest = [tail for tail in tails if tail is not None]
        if not rest:
            return torch.cat(logits)
        following = iter(self._run_parts(rest))
        joined = (part for head, tail in zip(logits, tails, strict=True) for part in (head, tail and next(following)))
        return torch.cat([part for part in joined if part is not None])

    def _split_at_limit(self, item: SequenceInput) -> tuple[SequenceInput, SequenceInput | None]:
        """Splits generated tokens and drafts at the limit: each has the factors of the sequence that ends with it.

        Example: with a limit of 64 and 63 tokens in the cache, a token and two drafts are split after the first.
        """
        first_count = self._limit - item.cache.length
        if not (item.num_generated >= item.num_logits > 1 and 0 < first_count < len(item.ids)):
            return item, None
        first_logits = max(0, item.num_logits - (len(item.ids) - first_count))
        head = SequenceInput(item.cache, item.ids[:first_count], first_logits, first_logits, item.adapter)
        rest = item.num_logits - first_logits
        return head, SequenceInput(item.cache, item.ids[first_count:], rest, rest, item.adapter)

    def _run_parts(self, inputs: list[SequenceInput]) -> list[Tensor]:
        """Runs one pass. Returns the logits of each input."""
        for item in inputs:
            is_long = item.cache.length + len(item.ids) > self._limit
            if item.cache.is_long != is_long:
                self._compute_again(item, is_long=is_long)
        logits = super().run_pass(inputs)
        for item in inputs:
            item.cache.ids.extend(item.ids)
        return list(torch.split(logits, [item.num_logits for item in inputs]))

    def _compute_again(self, item: SequenceInput, *, is_long: bool) -> None:
        """Replaces the keys and values of a cache by those of the other kind."""
        cache, ids = item.cache, list(item.cache.ids)
        cache.truncate(0)
        cache.is_long = is_long
        for start in range(0, len(ids), PIECE_TOKENS):
            piece = ids[start : start + PIECE_TOKENS]
            super().run_pass([SequenceInput(cache, piece, 0, adapter=item.adapter)])
            cache.ids.extend(piece)

    def _call_model(
        self, ids: Tensor, positions: Tensor, attn_metadata: AttentionMetadata, logit_indices: Tensor | None = None
    ) -> Tensor:
        """Logits of the row, as in the base class."""
        rows = torch.zeros(ids.shape[1], dtype=torch.bool)
        for cache, blocks, _ in attn_metadata.spans:
            assert isinstance(cache, LongRopeCache)
            rows[blocks[0][0] : blocks[-1][1]] = cache.is_long
        token = LONG_ROWS.set(rows.to(ids.device))
        try:
            return super()._call_model(ids, positions, attn_metadata, logit_indices)
        finally:
            LONG_ROWS.reset(token)


class LongRopeRotary:
    """The `forward` of a rotary module in packed passes, where each token may have factors of its own.

    The original chooses the factors by the largest position. It is therefore called with the positions of one kind
    only, and for the other kind with a position beyond the limit after them.
    """

    def __init__(self, original: Callable[..., tuple[Tensor, ...]], limit: int) -> None:
        self._original = original
        self._limit = limit

    def __call__(self, x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Returns cosines and sines (1, n, …) for positions (1, n)."""
        rows = LONG_ROWS.get()
        if rows is None:
            return self._original(x, position_ids, *args, **kwargs)
        beyond = position_ids.new_full((1, 1), self._limit)
        short = self._original(x, position_ids.masked_fill(rows, 0), *args, **kwargs)
        if not bool(rows.any()):
            return short
        long = self._original(x, torch.cat([position_ids, beyond], 1), *args, **kwargs)
        return tuple(torch.where(rows[:, None], far[:, :-1], near) for near, far in zip(short, long, strict=True))


def find_long_rotaries(model: nn.Module) -> list[nn.Module]:
    """Returns the rotary modules that choose their factors by the length of the sequence."""
    return [module for module in model.modules() if getattr(module, "rope_type", None) == "longrope"]


def find_rope_limit(config: Any) -> int | None:
    """Returns the number of tokens beyond which LongRoPE changes its factors; None for a model without it."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or parameters.get("rope_type") != "longrope":
        return None
    return int(parameters["original_max_position_embeddings"])
