"""Attention by chunks, and layers that read an earlier layer's keys: equal to attention under an explicit mask."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import Gemma3nTextConfig, Llama4TextConfig, MistralConfig

from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.cache.paged import PagedKVCache, PagePool
from antiphon.engine.forward.attention import AttentionMetadata, SequenceSpan, attend
from antiphon.engine.forward.attention_variants.layer_variants import (
    LayerVariant,
    RowPositions,
    find_layer_kinds,
    find_variants,
    find_windows,
    split_at_chunks,
)
from antiphon.engine.forward.decode_batch import DecodeBatch, build_tables
from antiphon.engine.kernels.bindings import Kernels

HEADS, KV_HEADS, DIM = 4, 2, 16
LENGTH_TOKENS, CHUNK_TOKENS = 90, 24


class FakeAttentionLayer:
    """The only attribute of an attention module that is read."""

    def __init__(self, layer_idx: int = 0) -> None:
        self.layer_idx = layer_idx


def make_tensors(length: int = LENGTH_TOKENS) -> list[Tensor]:
    """Returns a query, a key and a value of one sequence."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn((1, length, heads, DIM), generator=generator).transpose(1, 2) for heads in (HEADS, KV_HEADS, 2)]


def attend_by_mask(tensors: list[Tensor], chunk: int) -> Tensor:
    """Attention of a whole sequence (n, heads, dim), where each token sees the earlier ones of its chunk."""
    position = torch.arange(tensors[0].shape[2])
    mask = (position <= position[:, None]) & (position // chunk == position[:, None] // chunk)
    return functional.scaled_dot_product_attention(*tensors, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


def attend_in_parts(tensors: list[Tensor], bounds: list[int], kernels: Kernels | None, cache: Any) -> Tensor:
    """Attention of a sequence whose tokens come in several passes."""
    parts = []
    for start, end in pairwise(bounds):
        metadata = AttentionMetadata([SequenceSpan(cache, [(0, end - start)])], {}, (), kernels)
        metadata.variants = {0: LayerVariant(chunk=CHUNK_TOKENS)}
        piece = (tensor[:, :, start:end] for tensor in tensors)
        parts.append(attend(FakeAttentionLayer(), *piece, None, attn_metadata=metadata)[0][0])  # type: ignore[arg-type]
        cache.commit(end - start)
    return torch.cat(parts)


@torch.inference_mode()
@pytest.mark.parametrize("fp16", [False, True])
def test_attention_by_chunks_equals_a_mask(compiled_kernels: Kernels, fp16: bool) -> None:
    tensors = make_tensors()
    expected = attend_by_mask(tensors, CHUNK_TOKENS)
    whole = attend_in_parts(tensors, [0, LENGTH_TOKENS], compiled_kernels, ContiguousKVCache(fp16=fp16))
    assert torch.allclose(whole, expected, atol=2e-2 if fp16 else 1e-5)
    for bounds in ([0, 10, 24, 25, 60, 90], [0, 47, 48, 49, 72, 90]):
        cache = ContiguousKVCache(fp16=fp16)
        assert torch.equal(attend_in_parts(tensors, bounds, compiled_kernels, cache), whole)
        assert torch.allclose(attend_in_parts(tensors, bounds, None, ContiguousKVCache()), expected, atol=1e-5), (
            "by torch"
        )


@torch.inference_mode()
def test_decoded_tokens_of_a_paged_batch_see_their_chunk_only() -> None:
    tensors = make_tensors()
    expected = attend_by_mask(tensors, CHUNK_TOKENS)
    pool, lengths = PagePool(1, 64), [1, 23, 24, 40, 71, 89]
    caches = [PagedKVCache(pool) for _ in lengths]
    for cache, length in zip(caches, lengths, strict=True):
        cache.write_and_read(0, *(tensor[:, :, :length] for tensor in tensors[1:]))
        cache.commit(length)
    table, positions = (torch.from_numpy(array) for array in build_tables(caches, len(caches), 8))
    batch = DecodeBatch(pool, table, positions, torch.float32)
    metadata = AttentionMetadata([], {}, [(batch, 0, len(caches))])
    metadata.variants = {0: LayerVariant(chunk=CHUNK_TOKENS)}
    row = (tensor[:, :, lengths] for tensor in tensors)
    result = attend(FakeAttentionLayer(), *row, None, attn_metadata=metadata)[0][0]  # type: ignore[arg-type]
    assert torch.allclose(result, expected[lengths], atol=1e-5)


@torch.inference_mode()
def test_layer_without_keys_reads_those_of_its_source(compiled_kernels: Kernels) -> None:
    tensors = make_tensors()
    for kernels in (compiled_kernels, None):
        cache, results = ContiguousKVCache(), []
        for start, end in ((0, 50), (50, LENGTH_TOKENS)):
            metadata = AttentionMetadata([SequenceSpan(cache, [(0, end - start)])], {}, (), kernels)
            metadata.variants = {3: LayerVariant(source=1)}
            for layer in (1, 3):
                piece = (tensor[:, :, start:end] for tensor in tensors)
                output = attend(FakeAttentionLayer(layer), *piece, None, attn_metadata=metadata)[0][0]  # type: ignore[arg-type]
            results.append(output)
            cache.commit(end - start)
        assert list(cache.layers) == [1]
        assert torch.allclose(torch.cat(results), attend_by_mask(tensors, LENGTH_TOKENS), atol=1e-5)


def test_variants_are_read_from_the_configuration() -> None:
    kinds = ["sliding_attention", "full_attention"] * 3
    shared = Gemma3nTextConfig(
        num_hidden_layers=6, num_kv_shared_layers=2, layer_types=kinds, sliding_window=24, intermediate_size=[32] * 6,
        activation_sparsity_pattern=[0.0] * 6,
    )  # fmt: skip
    assert find_layer_kinds(shared) == kinds
    assert find_windows(shared) == {0: 24, 2: 24, 4: 24}
    assert find_variants(shared) == {4: LayerVariant(source=2), 5: LayerVariant(source=3)}
    chunked = Llama4TextConfig(num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0], attention_chunk_size=64)
    assert find_variants(chunked) == dict.fromkeys(range(3), LayerVariant(chunk=64))
    assert find_variants(MistralConfig(num_hidden_layers=2, sliding_window=8)) == {}


@pytest.mark.parametrize(
    ("first", "end", "parts"),
    [(5, 9, [(5, 8), (8, 9)]), (4, 8, [(4, 8)]), (0, 9, [(0, 4), (4, 8), (8, 9)]), (3, 4, [(3, 4)])],
)
def test_positions_are_split_where_chunks_begin(first: int, end: int, parts: list[tuple[int, int]]) -> None:
    assert split_at_chunks(first, end, 4) == parts


def test_row_positions_count_the_earlier_tokens_of_each_token() -> None:
    positions = torch.tensor([7, 0, 1, 2, 40])
    assert (torch.arange(5) + RowPositions(positions).get_seq_length()).tolist() == positions.tolist()
