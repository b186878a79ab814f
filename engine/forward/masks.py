"""Attention masks."""

import torch
from torch import Tensor


def additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to scores: 0 where attention is allowed, else -inf."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, float("-inf"))


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """A mask (queries, keys), True where attention is allowed. The last query has the position of the last key.

    Example: 2 queries over 4 keys without a window give [[1, 1, 1, 0], [1, 1, 1, 1]]; a window of 2 leaves
    [[0, 1, 1, 0], [0, 0, 1, 1]].
    """
    position = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None, :]
    mask = key <= position
    return mask if window is None else mask & (key > position - window)
