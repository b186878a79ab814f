"""Attention of one block of tokens by torch, in the fastest way for its shape."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.forward.masks import additive_mask, causal_mask

MAX_GROUPED_QUERIES = 64
"""Number of queries up to which query heads that share a key head are computed as rows of one head.

The mask grows with the number of these rows.
"""


class MaskCache:
    """Causal masks, each built once for all layers of a pass."""

    def __init__(self) -> None:
        self._masks: dict[tuple[int, int, int | None, int], Tensor] = {}

    def get(self, queries: int, keys: int, window: int | None, repeat: int, like: Tensor) -> Tensor:
        """A mask (repeat * queries, keys): 0 where attention is allowed, else -inf."""
        cache_key = (queries, keys, window, repeat)
        if cache_key not in self._masks:
            allowed = causal_mask(queries, keys, window, like.device)
            self._masks[cache_key] = additive_mask(allowed, like.dtype).repeat(repeat, 1)
        return self._masks[cache_key]


class AttentionParams(NamedTuple):
    """Parameters of a layer; see `attend`."""

    window: int | None
    scale: float
    softcap: float | None
    sinks: Tensor | None
    chunk: int | None = None

    @property
    def is_standard(self) -> bool:
        """True if torch's attention kernels support the layer: no softcap, no sinks."""
        return self.softcap is None and self.sinks is None


def attend_two_ways(
    query: Tensor, keys: Tensor, values: Tensor, params: AttentionParams, ends: Tensor, position: int
) -> Tensor:
    """`attend_block` where each query sees the keys before its number in `ends`. The first query is at `position`."""
    groups, length, num_keys = query.shape[2], query.shape[3], int(ends.max())
    key = torch.arange(num_keys, device=query.device)
    allowed = key < ends.to(query.device)[:, None]
    if params.window is not None:
        own = torch.arange(position, position + length, device=query.device)[:, None]
        allowed &= key > own - params.window
    mask = additive_mask(allowed, query.dtype)
    keys, values = keys[:, :, :num_keys], values[:, :, :num_keys]
    if params.is_standard:
        return _attend_by_group(query, keys, values, mask, params.scale)
    result = _attend_eager(query.flatten(2, 3), keys, values, mask.repeat(groups, 1), params, length)
    return _to_token_major(result, groups, length)


def attend_batch(rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, params: AttentionParams) -> Tensor:
    """One query for each of b sequences (b, kv_heads, groups, d), keys and values (b, kv_heads, m, …) → same shape."""
    if params.is_standard:
        return functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=params.scale)
    return _attend_eager(rows, keys, values, mask, params, 1)


def attend_block(query: Tensor, keys: Tensor, values: Tensor, params: AttentionParams, masks: MaskCache) -> Tensor:
    """Query (1, kv_heads, groups, n, d), keys and values (1, kv_heads, m, …) → (1, n, kv_heads, groups, value_dim)."""
    if params.is_standard:
        return _attend_fused(query, keys, values, params, masks)
    groups, length = query.shape[2], query.shape[3]
    mask = masks.get(length, keys.shape[2], params.window, groups, query) if length > 1 else None
    return _to_token_major(_attend_eager(query.flatten(2, 3), keys, values, mask, params, length), groups, length)


def attend_selected(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor) -> Tensor:
    """`attend_block` to the keys of a mask (heads, n, m); an indexer's heads are those of the keys."""
    groups, length = query.shape[2], query.shape[3]
    by_head = mask.repeat_interleave(groups, 0)
    attention = functional.scaled_dot_product_attention
    rows = query.flatten(1, 2)
    return _to_token_major(
        attention(rows, keys, values, attn_mask=by_head[None], scale=scale, enable_gqa=groups > 1), groups, length
    )


def _attend_fused(query: Tensor, keys: Tensor, values: Tensor, params: AttentionParams, masks: MaskCache) -> Tensor:
    """`attend_block` by torch's attention kernels."""
    attention = functional.scaled_dot_product_attention
    window, scale = params.window, params.scale
    groups, length, num_keys = query.shape[2], query.shape[3], keys.shape[2]
    is_causal = num_keys == length and (window is None or window >= length)
    if length > MAX_GROUPED_QUERIES or (is_causal and length > 1):
        mask = None if is_causal else masks.get(length, num_keys, window, 1, query)
        if mask is not None and query.is_cuda:
            return _attend_by_group(query, keys, values, mask, scale)
        rows = query.flatten(1, 2)
        result = attention(rows, keys, values, attn_mask=mask, scale=scale, is_causal=is_causal, enable_gqa=groups > 1)
    else:
        mask = None if length == 1 else masks.get(length, num_keys, window, groups, query)
        result = attention(query.flatten(2, 3), keys, values, attn_mask=mask, scale=scale)
    return _to_token_major(result, groups, length)


def _attend_by_group(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """`_attend_fused` with one call per group.

    On a GPU, none of torch's memory-efficient kernels accepts both a mask and heads that share keys.
    """
    attention = functional.scaled_dot_product_attention
    results = [attention(rows, keys, values, attn_mask=mask, scale=scale) for rows in query.unbind(2)]
    return torch.stack(results, 2).permute(0, 3, 1, 2, 4)


def _to_token_major(result: Tensor, groups: int, length: int) -> Tensor:
    """(1, kv_heads * groups, n, d) or (1, kv_heads, groups * n, d) → (1, n, kv_heads, groups, d)."""
    return result.reshape(1, -1, groups, length, result.shape[-1]).permute(0, 3, 1, 2, 4)


def _attend_eager(
    rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, params: AttentionParams, length: int
) -> Tensor:
    """Attention with a softcap or sinks, which torch's kernels do not support; `length` queries per head.

    Rows (b, kv_heads, rows, d), keys and values (b, kv_heads, m, …) → (b, kv_heads, rows, value_dim).
    """
    scores = torch.matmul(rows, keys.transpose(2, 3)).mul_(params.scale)
    if params.softcap is not None:
        scores = scores.div_(params.softcap).tanh_().mul_(params.softcap)
    if mask is not None:
        scores += mask
    scores = scores.float()
    if params.sinks is not None:  # an extra column: sinks take a share of the weight and have no value
        column = params.sinks.to(scores.dtype).reshape(1, keys.shape[1], -1, 1, 1)
        column = column.expand(len(scores), -1, -1, length, 1).flatten(2, 3)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1).to(values.dtype)
    return torch.matmul(weights[..., : keys.shape[2]], values)
