"""Attention over a batch whose tokens form one row, where each token attends only to the past of its own sequence.

transformers calls `attend` through its attention interface, once per layer; `AttentionMetadata` is passed
as a keyword of the forward call, and by `CURRENT_METADATA` to models whose layers do not pass keywords on. The
linear layers process the tokens of all sequences at once, without padding. Attention runs per sequence, so that its
result does not depend on the rest of the batch; compiled kernels process all sequences in one call. With paged caches,
sequences that decode one token each are batched and padded to the longest.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface

from antiphon.engine.cache.base import KVCache
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.forward.attention_variants.layer_variants import STANDARD, LayerVariant, split_at_chunks
from antiphon.engine.forward.block_attention import (
    AttentionParams,
    MaskCache,
    attend_batch,
    attend_block,
    attend_selected,
    attend_two_ways,
)
from antiphon.engine.forward.decode_batch import DecodeBatch
from antiphon.engine.kernels.bindings import Kernels

ATTENTION_NAME = "antiphon"
"""Name of this attention in transformers. No mask function has this name, so transformers builds no mask."""


class SequenceSpan(NamedTuple):
    """The tokens of one sequence in the row, as consecutive blocks (first, end); attention runs once per block.

    `visible_ends` are those of `PassPictures`.
    """

    cache: KVCache
    blocks: list[tuple[int, int]]
    visible_ends: Tensor | None = None


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
        self.two_way_layers: Collection[int] = ()
        """Layers in which the tokens of a picture see all of it."""
        self.encoder_outputs: dict[str, Any] | None = None
        """Features of the pictures in the row."""
        self.masks = MaskCache()

    def find_variant(self, layer: int) -> LayerVariant:
        """Returns what is special about the attention of a layer."""
        return self.variants.get(layer, STANDARD)

    def build_span_table(self, layer: int, key: Tensor, value: Tensor) -> tuple[list[int], bool]:
        """Span table for `Kernels.attend`, and whether the caches hold fp16.

        Reserves capacity for the new tokens; `key` and `value` only give the shapes and types of their entries.
        In a layer with chunks, the tokens of each chunk are a span whose keys begin with the chunk.
        """
        chunk, source = self.find_variant(layer)
        is_two_way = layer in self.two_way_layers
        layer = layer if source is None else source
        table: list[int] = []
        fp16_cache = False
        for cache, blocks, ends in self.spans:
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
                    0 if ends is None or not is_two_way else ends.data_ptr(),
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
    is_two_way = layer in attn_metadata.two_way_layers
    layer = layer if variant.source is None else variant.source
    heads = query.view(1, key.shape[1], -1, *query.shape[2:])
    results: list[Tensor] = []
    for batch, first, end in attn_metadata.batches:
        view = batch.view_for_window(params.window, params.chunk)
        keys_values = batch.write_and_read(layer, key[:, :, first:end], value[:, :, first:end], view)
        rows = heads[0, :, :, first:end].permute(2, 0, 1, 3)
        results.append(attend_batch(rows, *keys_values, view.mask, params)[None])
    masks = iter(block_indices or ())
    for span in attn_metadata.spans:
        shown = span if is_two_way else span._replace(visible_ends=None)
        results += _attend_span(shown, layer, heads, (key, value), params, attn_metadata.masks, masks)
    return (results[0] if len(results) == 1 else torch.cat(results, 1)).flatten(2, 3), None


def _attend_span(
    span: SequenceSpan,
    layer: int,
    heads: Tensor,
    new: tuple[Tensor, Tensor],
    params: AttentionParams,
    causal_masks: MaskCache,
    masks: Iterator[Tensor | None],
) -> list[Tensor]:
    """Writes the new keys and values of a sequence to its cache and attends block by block, with the next masks."""
    cache, blocks, ends = span
    first, end = blocks[0][0], blocks[-1][1]
    keys, values = cache.write_and_read(layer, *(tensor[:, :, first:end] for tensor in new))
    past = cache.length - first
    results = []
    for start, stop in (part for block in blocks for part in _split_block(*block, past, params.chunk)):
        num_keys = stop + past
        if ends is not None:
            seen = ends[start - first : stop - first]
            results.append(attend_two_ways(heads[:, :, :, start:stop], keys, values, params, seen, start + past))
            continue
        first_key = _first_key_of_chunk(start + past, params.chunk)
        if params.window is not None:
            first_key = max(0, start + past + 1 - params.window)
        visible = (keys[:, :, first_key:num_keys], values[:, :, first_key:num_keys])
        mask = next(masks, None)
        results.append(
            attend_block(heads[:, :, :, start:stop], *visible, params, causal_masks)
            if mask is None
            else attend_selected(heads[:, :, :, start:stop], *visible, params.scale, mask)
        )
    return results


AttentionInterface.register(ATTENTION_NAME, attend)
