"""Attention over a pack: the tokens of several sequences in one row, each looking only at its own past.

transformers calls :func:`attend` through its attention interface, once per layer; the pack travels there as a keyword
of the forward call. The linear layers see all tokens of all sequences at once, without padding. Attention sees one
sequence at a time, which therefore does not depend on its neighbours; compiled kernels do that for all of them in one
call. Where caches are paged, sequences that say one token each are seen together, and filled up to the longest.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from antiphon.engine.cache.base import KVCache
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.decode_batch import DecodeBatch
from antiphon.engine.model.masks import additive_mask, causal_mask

ATTENTION_NAME = "antiphon"
"""How transformers calls this attention. It is no mask function's name, so that no mask is built outside."""

MAX_GROUPED_QUERIES = 64
"""Up to so many queries, those of heads that share keys are laid out as rows of one head; the mask grows with them."""


class SequenceSpan(NamedTuple):
    """The tokens of one sequence in the row, cut into (first, end), one after the other."""

    cache: KVCache
    blocks: list[tuple[int, int]]


class AttentionMetadata:
    """Which tokens of the row belong to whom, in row order: first those of ``batches``, then those of ``spans``.

    ``windows`` maps a layer to its sliding window in tokens; a layer that is not in it looks back without limit.
    ``kernels`` attend to spans whose caches are contiguous, each token on its own. Without, or where a layer asks for
    what they do not know, what stands between two cuts is computed at once, which decides about the last bits, and
    ``compiled`` is False from then on.
    """

    def __init__(
        self,
        spans: list[SequenceSpan],
        windows: dict[int, int],
        batches: Sequence[tuple[DecodeBatch, int, int]] = (),
        kernels: Kernels | None = None,
    ) -> None:
        self.kernels = kernels
        self.used_kernels = kernels is not None
        self.spans = spans
        self.batches = batches
        self.windows = windows
        self._masks: dict[tuple[int, int, int | None, int], Tensor] = {}

    def additive_mask(self, queries: int, keys: int, window: int | None, repeat: int, like: Tensor) -> Tensor:
        """(repeat * queries, keys): 0 where attention may look, else -inf. Built once for all layers."""
        known = (queries, keys, window, repeat)
        if known not in self._masks:
            allowed = causal_mask(queries, keys, window, like.device)
            self._masks[known] = additive_mask(allowed, like.dtype).repeat(repeat, 1)
        return self._masks[known]

    def build_span_table(self, layer: int, key: Tensor, value: Tensor) -> tuple[list[int], bool]:
        """What kernels are told about the spans (see :meth:`Kernels.attend`), and whether their caches hold fp16.

        ``key`` and ``value`` show what new ones look like; there is room for them then.
        """
        table: list[int] = []
        halves = False
        for kv, cuts in self.spans:
            assert isinstance(kv, ContiguousKVCache)
            first, end = cuts[0][0], cuts[-1][1]
            table += (
                first,
                end - first,
                *kv.reserve_addresses(layer, key, value, end - first),
                kv.length + end - first,
                0,
            )
            halves = kv.fp16
        return table, halves


class AttentionParams(NamedTuple):
    """What a layer asks for; see :func:`attend`."""

    window: int | None
    scale: float
    softcap: float | None
    sinks: Tensor | None

    @property
    def is_standard(self) -> bool:
        """Whether torch's own kernels know such scores."""
        return self.softcap is None and self.sinks is None


def attend(  # noqa: PLR0913  the signature is transformers'
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001  always None: see NAME
    *,
    attn_metadata: AttentionMetadata,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Query (1, heads, n, head_dim), key and value (1, kv_heads, n, head_dim) → (1, n, heads, value_dim).

    ``softcap`` bounds the scores (Gemma 2), ``s_aux`` holds one sink score per head (gpt-oss).
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    ask = AttentionParams(attn_metadata.windows.get(layer), scale, softcap, s_aux)
    kernels = attn_metadata.kernels
    if kernels is not None and softcap is None and kernels.supports_attention(query, key, value, s_aux):
        table, halves = attn_metadata.build_span_table(layer, key, value)
        return kernels.attend(query, key, value, table, scale, window=ask.window, sinks=s_aux, fp16_cache=halves), None
    attn_metadata.used_kernels = False
    heads = query.view(1, key.shape[1], -1, *query.shape[2:])
    results: list[Tensor] = []
    for batch, first, end in attn_metadata.batches:
        view = batch.view_for_window(ask.window)
        seen = batch.write_and_read(layer, key[:, :, first:end], value[:, :, first:end], view)
        rows = heads[0, :, :, first:end].permute(2, 0, 1, 3)
        results.append(_attend_batch(rows, *seen, view.mask, ask)[None])
    for kv, cuts in attn_metadata.spans:
        first, end = cuts[0][0], cuts[-1][1]
        keys, values = kv.write_and_read(layer, key[:, :, first:end], value[:, :, first:end])
        for start, stop in cuts:
            last = kv.length + stop - first
            oldest = 0 if ask.window is None else max(0, last - (stop - start) + 1 - ask.window)
            past = (keys[:, :, oldest:last], values[:, :, oldest:last])
            results.append(_attend_block(heads[:, :, :, start:stop], *past, ask, attn_metadata))
    return (results[0] if len(results) == 1 else torch.cat(results, 1)).flatten(2, 3), None


def _attend_batch(rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, ask: AttentionParams) -> Tensor:
    """One query of each of b sequences, (b, kv_heads, groups, d), over as many keys of each → the same shape."""
    if ask.is_standard:
        return functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=ask.scale)
    return _attend_eager(rows, keys, values, mask, ask, 1)


def _attend_block(
    query: Tensor, keys: Tensor, values: Tensor, ask: AttentionParams, attn_metadata: AttentionMetadata
) -> Tensor:
    """Query (1, kv_heads, groups, n, d), keys and values (1, kv_heads, m, …) → (1, n, kv_heads, groups, value_dim)."""
    if ask.is_standard:
        return _attend_fused(query, keys, values, ask, attn_metadata)
    groups, length = query.shape[2], query.shape[3]
    mask = attn_metadata.additive_mask(length, keys.shape[2], ask.window, groups, query) if length > 1 else None
    return _to_token_major(_attend_eager(query.flatten(2, 3), keys, values, mask, ask, length), groups, length)


def _attend_fused(
    query: Tensor, keys: Tensor, values: Tensor, ask: AttentionParams, attn_metadata: AttentionMetadata
) -> Tensor:
    """As :func:`_cut`, by torch's kernels."""
    attention = functional.scaled_dot_product_attention
    window, scale = ask.window, ask.scale
    groups, length, seen = query.shape[2], query.shape[3], keys.shape[2]
    whole = seen == length and (window is None or window >= length)
    if length > MAX_GROUPED_QUERIES or (whole and length > 1):
        mask = None if whole else attn_metadata.additive_mask(length, seen, window, 1, query)
        if mask is not None and query.is_cuda:
            return _attend_by_group(query, keys, values, mask, scale)
        rows = query.flatten(1, 2)
        result = attention(rows, keys, values, attn_mask=mask, scale=scale, is_causal=whole, enable_gqa=groups > 1)
    else:
        mask = None if length == 1 else attn_metadata.additive_mask(length, seen, window, groups, query)
        result = attention(query.flatten(2, 3), keys, values, attn_mask=mask, scale=scale)
    return _to_token_major(result, groups, length)


def _attend_by_group(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """As :func:`_fused` does, each group on its own.

    On a GPU, none of torch's kernels that save memory takes both a mask and heads that share keys.
    """
    attention = functional.scaled_dot_product_attention
    results = [attention(rows, keys, values, attn_mask=mask, scale=scale) for rows in query.unbind(2)]
    return torch.stack(results, 2).permute(0, 3, 1, 2, 4)


def _to_token_major(result: Tensor, groups: int, length: int) -> Tensor:
    """(1, kv_heads * groups, n, d) or (1, kv_heads, groups * n, d) → (1, n, kv_heads, groups, d)."""
    return result.reshape(1, -1, groups, length, result.shape[-1]).permute(0, 3, 1, 2, 4)


def _attend_eager(
    rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, ask: AttentionParams, length: int
) -> Tensor:
    """Attention with scores that torch's kernels do not know, ``length`` queries of each head.

    (b, kv_heads, rows, d) over (b, kv_heads, m, …) → (b, kv_heads, rows, value_dim).
    """
    scores = torch.matmul(rows, keys.transpose(2, 3)).mul_(ask.scale)
    if ask.softcap is not None:
        scores = scores.div_(ask.softcap).tanh_().mul_(ask.softcap)
    if mask is not None:
        scores += mask
    scores = scores.float()
    if ask.sinks is not None:  # one more column: scores that take their share of the weight and give nothing
        column = ask.sinks.to(scores.dtype).reshape(1, keys.shape[1], -1, 1, 1)
        column = column.expand(len(scores), -1, -1, length, 1).flatten(2, 3)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1).to(values.dtype)
    return torch.matmul(weights[..., : keys.shape[2]], values)


AttentionInterface.register(ATTENTION_NAME, attend)
