"""Attention masks."""

import torch
from torch import Tensor


def additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0 where attention may look, else -inf."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, float("-inf"))


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """A (queries, keys) mask, True where attention may look; the last query stands on the last key."""
    place = torch.arange(keys - queries, keys, device=device)[:, None]
    column = torch.arange(keys, device=device)[None, :]
    mask = column <= place
    return mask if window is None else mask & (column > place - window)
