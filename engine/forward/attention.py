"""Attention over a batch whose tokens form one row, where each token attends only to the past of its own sequence.

transformers calls `attend` through its attention interface, once per layer; `AttentionMetadata` is passed
as a keyword of the forward call, and by `CURRENT_METADATA` to models whose layers do not pass keywords on. The
linear layers process the tokens of all sequences at once, without padding. Attention runs per sequence, so that its
result does not depend on the rest of the batch; compiled kernels process all sequences in one call. With paged caches,
sequences that decode one token each are batched and padded to the longest.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from antiphon.engine.cache.base import KVCache
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.forward.attention_variants.layer_variants import STANDARD, LayerVariant, split_at_chunks
from antiphon.engine.forward.decode_batch import DecodeBatch
from antiphon.engine.forward.masks import additive_mask, causal_mask
from antiphon.engine.kernels.bindings import Kernels

ATTENTION_NAME = "antiphon"
"""Name of this attention in transformers. No mask function has this name, so transformers builds no mask."""

MAX_GROUPED_QUERIES = 64
"""Number of queries up to which query heads that share a key head are computed as rows of one head.

The mask grows with the number of these rows.
"""


class SequenceSpan(NamedTuple):
    """The tokens of one sequence in the row, as consecutive blocks (first, end); attention runs once per block."""

    cache: KVCache
    blocks: list[tuple[int, int]]


class AttentionMetadata:
    """Maps the tokens of the row to sequences, in row order: first those of `batches`, then those of `spans`.

    `windows` maps a layer to its sliding window in tokens; other layers attend without limit, unless `variants`
    says otherwise. `kernels` compute the
    attention of spans with contiguous caches, each token separately. Without kernels, or in a layer that they do not
    support, each block of a span is computed at once, so that the last bits depend on the blocks; then
    `used_kernels` becomes False.
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
        self.unsupported: str | None = None
        """Reason why the kernels did not compute a layer."""
        self.is_unfused = False
        """True if whole layers must not run as one kernel call, because adapters change their parts."""
        self.spans = spans
        self.batches = batches
        self.windows = windows
        self.variants: Mapping[int, LayerVariant] = {}
        self._masks: dict[tuple[int, int, int | None, int], Tensor] = {}

    def additive_mask(self, queries: int, keys: int, window: int | None, repeat: int, like: Tensor) -> Tensor:
        """A mask (repeat * queries, keys): 0 where attention is allowed, else -inf. Built once for all layers."""
        cache_key = (queries, keys, window, repeat)
        if cache_key not in self._masks:
            allowed = causal_mask(queries, keys, window, like.device)
            self._masks[cache_key] = additive_mask(allowed, like.dtype).repeat(repeat, 1)
        return self._masks[cache_key]

    def find_variant(self, layer: int) -> LayerVariant:
        """Returns what is special about the attention of a layer."""
        return self.variants.get(layer, STANDARD)

    def build_span_table(self, layer: int, key: Tensor, value: Tensor) -> tuple[list[int], bool]:
        """Span table for `Kernels.attend`, and whether the caches hold fp16.

        Reserves capacity for the new tokens; `key` and `value` only give the shapes and types of their entries.
        In a layer with chunks, the tokens of each chunk are a span whose keys begin with the chunk.
        """
        chunk, source = self.find_variant(layer)
        layer = layer if source is None else source
        table: list[int] = []
        fp16_cache = False
        for cache, blocks in self.spans:
            assert isinstance(cache, ContiguousKVCache)
            first, end = blocks[0][0], blocks[-1][1]
            addresses = cache.reserve_addresses(layer, key, value, end - first)
            past = cache.length - first
            for start, stop in _split_block(first, end, past, chunk):
                skipped = _first_key_of_chunk(start + past, chunk)
                itemsize = 2 if cache.fp16 else key.element_size()
                table += (
                    start,
                    stop - start,
                    addresses.keys + skipped * key.shape[3] * itemsize,
                    addresses.values + skipped * value.shape[3] * itemsize,
                    addresses.key_step,
                    addresses.value_step,
                    stop + past - skipped,
                    0,
                )
            fp16_cache = cache.fp16
        return table, fp16_cache


def _split_block(first: int, end: int, past: int, chunk: int | None) -> list[tuple[int, int]]:
    """Splits a block of the row where chunks of its sequence begin. Index i of the row has position i + `past`."""
    if chunk is None:
        return [(first, end)]
    return [(start - past, stop - past) for start, stop in split_at_chunks(first + past, end + past, chunk)]


def _first_key_of_chunk(position: int, chunk: int | None) -> int:
    """Returns the position of the first key that a token at this position attends to."""
    return 0 if chunk is None else position - position % chunk


CURRENT_METADATA: ContextVar[AttentionMetadata] = ContextVar("CURRENT_METADATA")
"""Metadata of the pass that runs now."""


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


def attend(  # noqa: PLR0913  the signature is transformers'
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001  always None: see ATTENTION_NAME
    *,
    attn_metadata: AttentionMetadata | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    block_indices: list[Tensor | None] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Query (1, heads, n, head_dim), key and value (1, kv_heads, n, head_dim) → (1, n, heads, value_dim), None.

    Also writes `key` and `value` to the caches. `softcap` limits the scores (Gemma 2), `s_aux` holds one sink
    score per head (gpt-oss). A layer that reads an earlier layer's keys gets their new ones as `key` and `value`.
    `block_indices` are the masks of `antiphon.engine.forward.attention_variants.indexers.PackedIndexer`.
    """
    if attn_metadata is None:
        attn_metadata = CURRENT_METADATA.get()
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    variant = attn_metadata.find_variant(layer)
    params = AttentionParams(attn_metadata.windows.get(layer), scale, softcap, s_aux, variant.chunk)
    kernels = attn_metadata.kernels
    unsupported = None if kernels is None else kernels.explain_unsupported_attention(query, key, value, s_aux)
    if kernels is not None and unsupported is None:
        table, fp16 = attn_metadata.build_span_table(layer, key, value)
        attended = kernels.attend(
            query, key, value, table, scale, window=params.window, sinks=s_aux, softcap=softcap, fp16_cache=fp16
        )
        return attended, None
    attn_metadata.used_kernels, attn_metadata.unsupported = False, unsupported
    layer = layer if variant.source is None else variant.source
    heads = query.view(1, key.shape[1], -1, *query.shape[2:])
    results: list[Tensor] = []
    for batch, first, end in attn_metadata.batches:
        view = batch.view_for_window(params.window, params.chunk)
        keys_values = batch.write_and_read(layer, key[:, :, first:end], value[:, :, first:end], view)
        rows = heads[0, :, :, first:end].permute(2, 0, 1, 3)
        results.append(_attend_batch(rows, *keys_values, view.mask, params)[None])
    masks = iter(block_indices or ())
    for span in attn_metadata.spans:
        results += _attend_span(span, layer, heads, (key, value), params, attn_metadata, masks)
    return (results[0] if len(results) == 1 else torch.cat(results, 1)).flatten(2, 3), None


def _attend_span(
    span: SequenceSpan,
    layer: int,
    heads: Tensor,
    new: tuple[Tensor, Tensor],
    params: AttentionParams,
    attn_metadata: AttentionMetadata,
    masks: Iterator[Tensor | None],
) -> list[Tensor]:
    """Writes the new keys and values of a sequence to its cache and attends block by block, with the next masks."""
    cache, blocks = span
    first, end = blocks[0][0], blocks[-1][1]
    keys, values = cache.write_and_read(layer, *(tensor[:, :, first:end] for tensor in new))
    past = cache.length - first
    results = []
    for start, stop in (part for block in blocks for part in _split_block(*block, past, params.chunk)):
        num_keys = stop + past
        first_key = _first_key_of_chunk(start + past, params.chunk)
        if params.window is not None:
            first_key = max(0, start + past + 1 - params.window)
        visible = (keys[:, :, first_key:num_keys], values[:, :, first_key:num_keys])
        mask = next(masks, None)
        results.append(
            _attend_block(heads[:, :, :, start:stop], *visible, params, attn_metadata)
            if mask is None
            else _attend_selected(heads[:, :, :, start:stop], *visible, params.scale, mask)
        )
    return results


def _attend_batch(rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, params: AttentionParams) -> Tensor:
    """One query for each of b sequences (b, kv_heads, groups, d), keys and values (b, kv_heads, m, …) → same shape."""
    if params.is_standard:
        return functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=params.scale)
    return _attend_eager(rows, keys, values, mask, params, 1)


def _attend_block(
    query: Tensor, keys: Tensor, values: Tensor, params: AttentionParams, attn_metadata: AttentionMetadata
) -> Tensor:
    """Query (1, kv_heads, groups, n, d), keys and values (1, kv_heads, m, …) → (1, n, kv_heads, groups, value_dim)."""
    if params.is_standard:
        return _attend_fused(query, keys, values, params, attn_metadata)
    groups, length = query.shape[2], query.shape[3]
    mask = attn_metadata.additive_mask(length, keys.shape[2], params.window, groups, query) if length > 1 else None
    return _to_token_major(_attend_eager(query.flatten(2, 3), keys, values, mask, params, length), groups, length)


def _attend_selected(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor) -> Tensor:
    """`_attend_block` to the keys of a mask (heads, n, m); an indexer's heads are those of the keys."""
    groups, length = query.shape[2], query.shape[3]
    by_head = mask.repeat_interleave(groups, 0)
    attention = functional.scaled_dot_product_attention
    rows = query.flatten(1, 2)
    return _to_token_major(
        attention(rows, keys, values, attn_mask=by_head[None], scale=scale, enable_gqa=groups > 1), groups, length
    )


def _attend_fused(
    query: Tensor, keys: Tensor, values: Tensor, params: AttentionParams, attn_metadata: AttentionMetadata
) -> Tensor:
    """`_attend_block` by torch's attention kernels."""
    attention = functional.scaled_dot_product_attention
    window, scale = params.window, params.scale
    groups, length, num_keys = query.shape[2], query.shape[3], keys.shape[2]
    is_causal = num_keys == length and (window is None or window >= length)
    if length > MAX_GROUPED_QUERIES or (is_causal and length > 1):
        mask = None if is_causal else attn_metadata.additive_mask(length, num_keys, window, 1, query)
        if mask is not None and query.is_cuda:
            return _attend_by_group(query, keys, values, mask, scale)
        rows = query.flatten(1, 2)
        result = attention(rows, keys, values, attn_mask=mask, scale=scale, is_causal=is_causal, enable_gqa=groups > 1)
    else:
        mask = None if length == 1 else attn_metadata.additive_mask(length, num_keys, window, groups, query)
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


AttentionInterface.register(ATTENTION_NAME, attend)
