"""Attention over a pack: the tokens of several sequences in one row, each looking only at its own past.

transformers calls :func:`attend` through its attention interface, once per layer; the pack travels there as a keyword
of the forward call. The linear layers see all tokens of all sequences at once, without padding. Attention sees one
sequence at a time, which therefore does not depend on its neighbours; where caches are paged, sequences that say one
token each are seen together, and filled up to the longest.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from engine.batch import Batch
from engine.kv import KV, additive, causal_mask

NAME = "antiphon"
"""How transformers calls this attention. It is no mask function's name, so that no mask is built outside."""


GROUPED = 64
"""Up to so many queries, those of heads that share keys are laid out as rows of one head; the mask grows with them."""


class Span(NamedTuple):
    """The tokens of one sequence in the row, cut into (first, end), one after the other."""

    kv: KV
    cuts: list[tuple[int, int]]


class Pack:
    """Which tokens of the row belong to whom, in row order: first those of ``batches``, then those of ``spans``.

    ``windows`` maps a layer to its sliding window in tokens; a layer that is not in it looks back without limit.
    Attention of what stands in one span is computed at once: where the spans of a text begin and end decides about
    the last bits.
    """

    def __init__(
        self, spans: list[Span], windows: dict[int, int], batches: Sequence[tuple[Batch, int, int]] = ()
    ) -> None:
        self.spans = spans
        self.batches = batches
        self.windows = windows
        self._masks: dict[tuple[int, int, int | None, int], Tensor] = {}

    def mask(self, queries: int, keys: int, window: int | None, repeat: int, like: Tensor) -> Tensor:
        """(repeat * queries, keys): 0 where attention may look, else -inf. Built once for all layers."""
        known = (queries, keys, window, repeat)
        if known not in self._masks:
            allowed = causal_mask(queries, keys, window, like.device)
            self._masks[known] = additive(allowed, like.dtype).repeat(repeat, 1)
        return self._masks[known]


def attend(  # noqa: PLR0913  the signature is transformers'
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001  always None: see NAME
    *,
    pack: Pack,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Query (1, heads, n, head_dim), key and value (1, kv_heads, n, head_dim) → (1, n, heads, value_dim).

    ``softcap`` bounds the scores (Gemma 2), ``s_aux`` holds one sink score per head (gpt-oss).
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    window = pack.windows.get(layer)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query = query.view(1, key.shape[1], -1, *query.shape[2:])
    results: list[Tensor] = []
    for batch, first, end in pack.batches:
        view = batch.view(window)
        seen = batch.extend(layer, key[:, :, first:end], value[:, :, first:end], view)
        rows = query[0, :, :, first:end].permute(2, 0, 1, 3)
        results.append(_together(rows, *seen, view.mask, scale, softcap, s_aux)[None])
    for kv, cuts in pack.spans:
        first, end = cuts[0][0], cuts[-1][1]
        keys, values = kv.extend(layer, key[:, :, first:end], value[:, :, first:end])
        for start, stop in cuts:
            last = keys.shape[2] - (end - stop)
            oldest = 0 if window is None else max(0, last - (stop - start) + 1 - window)
            seen = (keys[:, :, oldest:last], values[:, :, oldest:last])
            rows = query[:, :, :, start:stop]
            if softcap is None and s_aux is None:
                results.append(_fused(rows, *seen, window, scale, pack))
            else:
                results.append(_single(rows, *seen, window, scale, pack, softcap, s_aux))
    output = results[0] if len(results) == 1 else torch.cat(results, 1)
    return output.flatten(2, 3), None


def _together(
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """One query of each of b sequences, (b, kv_heads, groups, d), over as many keys of each → the same shape."""
    if softcap is None and sinks is None:
        return functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)
    return _plain(rows, keys, values, mask, scale, softcap, _column(sinks, rows.shape[1], 1))


def _fused(query: Tensor, keys: Tensor, values: Tensor, window: int | None, scale: float, pack: Pack) -> Tensor:
    """Query (1, kv_heads, groups, n, d), keys and values (1, kv_heads, m, …) → (1, n, kv_heads, groups, value_dim).

    Scaled dot-product attention by torch's kernels.
    """
    attention = functional.scaled_dot_product_attention
    groups, length, seen = query.shape[2], query.shape[3], keys.shape[2]
    whole = seen == length and (window is None or window >= length)
    if length > GROUPED or (whole and length > 1):
        mask = None if whole else pack.mask(length, seen, window, 1, query)
        if mask is not None and query.is_cuda:
            return _by_group(query, keys, values, mask, scale)
        rows = query.flatten(1, 2)
        result = attention(rows, keys, values, attn_mask=mask, scale=scale, is_causal=whole, enable_gqa=groups > 1)
    else:
        mask = None if length == 1 else pack.mask(length, seen, window, groups, query)
        result = attention(query.flatten(2, 3), keys, values, attn_mask=mask, scale=scale)
    return _by_token(result, groups, length)


def _by_group(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """As :func:`_fused`, of each group on its own.

    On a GPU, none of torch's kernels that save memory takes both a mask and heads that share keys.
    """
    attention = functional.scaled_dot_product_attention
    results = [attention(rows, keys, values, attn_mask=mask, scale=scale) for rows in query.unbind(2)]
    return torch.stack(results, 2).permute(0, 3, 1, 2, 4)


def _by_token(result: Tensor, groups: int, length: int) -> Tensor:
    """(1, kv_heads * groups, n, d) or (1, kv_heads, groups * n, d) → (1, n, kv_heads, groups, d)."""
    return result.reshape(1, -1, groups, length, result.shape[-1]).permute(0, 3, 1, 2, 4)


def _single(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None,
    scale: float,
    pack: Pack,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """As :func:`_fused`, for scores that torch's kernels do not know."""
    groups, length = query.shape[2], query.shape[3]
    mask = pack.mask(length, keys.shape[2], window, groups, query) if length > 1 else None
    column = _column(sinks, keys.shape[1], length)
    return _by_token(_plain(query.flatten(2, 3), keys, values, mask, scale, softcap, column), groups, length)


def _column(sinks: Tensor | None, kv_heads: int, length: int) -> Tensor | None:
    """The sinks of all heads (heads,) as one column of scores for ``length`` queries: (1, kv_heads, rows, 1)."""
    if sinks is None:
        return None
    return sinks.reshape(1, kv_heads, -1, 1, 1).expand(-1, -1, -1, length, 1).flatten(2, 3)


def _plain(
    rows: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    column: Tensor | None,
) -> Tensor:
    """Attention written out: (b, kv_heads, rows, d) over (b, kv_heads, m, …) → (b, kv_heads, rows, value_dim).

    ``column`` holds scores that take their share of the weight and give nothing.
    """
    scores = torch.matmul(rows, keys.transpose(2, 3)).mul_(scale)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores += mask
    scores = scores.float()
    if column is not None:
        scores = torch.cat([scores, column.to(scores.dtype).expand(len(scores), -1, -1, -1)], dim=-1)
    weights = torch.softmax(scores, dim=-1).to(values.dtype)
    return torch.matmul(weights[..., : keys.shape[2]], values)


AttentionInterface.register(NAME, attend)
