"""Attention over a pack: the tokens of several sequences in one row, each looking only at its own past.

transformers calls :func:`attend` through its attention interface, once per layer; the pack travels there as a keyword
of the forward call. Nothing is padded: the linear layers see all tokens of all sequences at once, attention sees one
sequence at a time. A sequence's attention therefore does not depend on its neighbours.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from engine.kv import KV, causal_mask

NAME = "antiphon"
"""How transformers calls this attention. It is no mask function's name, so that no mask is built outside."""


class Pack:
    """Which tokens of the row belong to whom: ``spans`` holds (cache, first, end), in row order.

    ``windows`` maps a layer to its sliding window in tokens; a layer that is not in it looks back without limit.
    """

    def __init__(self, spans: list[tuple[KV, int, int]], windows: dict[int, int]) -> None:
        self.spans = spans
        self.windows = windows


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
    output = query.new_empty((1, query.shape[2], query.shape[1], value.shape[-1]))
    for kv, first, end in pack.spans:
        rows = query[:, :, first:end]
        keys, values = kv.extend(layer, key[:, :, first:end], value[:, :, first:end])
        if window is not None:
            oldest = max(0, kv.length + 1 - window)
            keys, values = keys[:, :, oldest:], values[:, :, oldest:]
        if softcap is None and s_aux is None:
            result = _fused(rows, keys, values, window, scale)
        else:
            result = _plain(rows, keys, values, window, scale, softcap, s_aux)
        output[:, first:end] = result.transpose(1, 2)
    return output, None


def _fused(query: Tensor, keys: Tensor, values: Tensor, window: int | None, scale: float) -> Tensor:
    """Scaled dot-product attention by torch's kernels."""
    heads, length = query.shape[1], query.shape[2]
    groups = heads // keys.shape[1]
    if length == 1:
        grouped = query.reshape(1, keys.shape[1], groups, query.shape[3])
        result = functional.scaled_dot_product_attention(grouped, keys, values, scale=scale)
        return result.reshape(1, heads, 1, values.shape[3])
    if keys.shape[2] == length and (window is None or window >= length):
        return functional.scaled_dot_product_attention(
            query, keys, values, scale=scale, is_causal=True, enable_gqa=groups > 1
        )
    mask = causal_mask(length, keys.shape[2], window, query.device)
    keys, values = _repeat(keys, groups), _repeat(values, groups)
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)


def _plain(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """The same written out, for scores that torch's kernels do not know."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = _repeat(keys, groups), _repeat(values, groups)
    scores = torch.matmul(query, keys.transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if query.shape[2] > 1:
        scores = scores.masked_fill(~causal_mask(query.shape[2], keys.shape[2], window, query.device), float("-inf"))
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(1, -1, query.shape[2], 1).to(scores.dtype)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.matmul(weights[..., : keys.shape[2]], values)


def _repeat(states: Tensor, groups: int) -> Tensor:
    """(1, kv_heads, n, d) → (1, kv_heads * groups, n, d), each head repeated for its group of queries."""
    return states if groups == 1 else states.repeat_interleave(groups, dim=1)


AttentionInterface.register(NAME, attend)
