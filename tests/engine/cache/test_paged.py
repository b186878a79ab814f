"""Paged KV caches: contents under page sharing, the page pool, and decode batches that read many caches at once."""

import random
from typing import Any

import pytest
import torch

from antiphon.engine.cache.paged import PAGE_TOKENS, PagedKVCache, PagePool
from antiphon.engine.forward.decode_batch import (
    MAX_TOKENS_READ,
    MIN_TABLE_COLUMNS,
    DecodeBatch,
    bucket_by_length,
    bucket_size,
    build_tables,
    columns_needed,
)

NUM_LAYERS = 2
MAX_CACHES = 12


@torch.inference_mode()
def write_tokens(kv: PagedKVCache, *tokens: int, commit: bool = True) -> list[int]:
    """Writes these tokens into every layer. Returns the tokens of the first layer."""
    tensor = torch.tensor(tokens, dtype=torch.float32).reshape(1, 1, -1, 1).expand(1, 2, -1, 4)
    views = [kv.write_and_read(layer, tensor + layer, -tensor) for layer in range(NUM_LAYERS)]
    for layer, (keys, values) in enumerate(views):
        assert torch.equal(keys - layer, -values)
    if commit:
        kv.commit(len(tokens))
    return [int(token) for token in views[0][0][0, 1, :, 3].tolist()]


def make_filled_caches(pages: PagePool, *lengths: int) -> list[PagedKVCache]:
    """Returns a cache for each of these lengths. Its tokens are 1, 2, 3, …"""
    kvs = [PagedKVCache(pages) for _ in lengths]
    for kv, length in zip(kvs, lengths, strict=True):
        if length:
            write_tokens(kv, *range(1, length + 1))
    return kvs


@pytest.mark.parametrize("seed", range(8))
def test_random_operations_keep_the_tokens_of_each_cache(seed: int) -> None:
    generator, num_pages = random.Random(seed), 250
    pages = PagePool(NUM_LAYERS, num_pages)
    caches: list[tuple[PagedKVCache, list[int]]] = []
    for step in range(400):
        operation = generator.choice(["new", "write", "write", "write", "fail", "cut", "copy", "shrink", "drop"])
        if (operation == "new" and len(caches) < MAX_CACHES) or not caches:
            caches.append((PagedKVCache(pages, generator.randrange(40)), []))
            continue
        kv, tokens = caches[generator.randrange(len(caches))]
        length = generator.randrange(len(tokens) + 1)
        new = [1000 + step * 50 + n for n in range(generator.choice([1, 1, 3, PAGE_TOKENS, 40]))]
        if operation == "copy" and len(caches) < MAX_CACHES:
            caches.append((kv.copy(length, length + generator.randrange(30)), tokens[:length]))
        elif operation in ("write", "fail") and len(tokens) < 200:
            assert write_tokens(kv, *new, commit=operation == "write") == tokens + new
            tokens += new if operation == "write" else []
        elif operation in ("cut", "shrink"):
            (kv.truncate if operation == "cut" else kv.shrink)(length)
            del tokens[length:]
        elif operation == "drop":
            caches.remove((kv, tokens))
        del kv
        assert [cache.length for cache, _ in caches] == [len(tokens) for _, tokens in caches]
        assert all(cache.capacity % PAGE_TOKENS == 0 and cache.capacity >= cache.length for cache, _ in caches)
        assert num_pages - 1 - pages.num_free <= sum(cache.capacity for cache, _ in caches) // PAGE_TOKENS, (
            "sharing never uses more pages"
        )
    for cache, tokens in caches:
        assert write_tokens(cache, 7, commit=False) == [*tokens, 7]
    del cache
    caches.clear()
    assert pages.num_free == num_pages - 1


def test_copy_shares_pages_until_one_cache_writes() -> None:
    pages = PagePool(NUM_LAYERS, 20)
    (kv,) = make_filled_caches(pages, 40)
    num_free = pages.num_free
    copy = kv.copy(36, 36)
    assert pages.num_free == num_free and copy.table == kv.table
    write_tokens(copy, 99)
    assert pages.num_free == num_free - 1 and copy.table[:2] == kv.table[:2] and copy.table[2] != kv.table[2]
    assert write_tokens(kv, 5) == [*range(1, 41), 5] and pages.num_free == num_free - 1


def test_page_exhaustion_raises_and_changes_nothing() -> None:
    pages = PagePool(NUM_LAYERS, 4)
    (kv,) = make_filled_caches(pages, 40)
    with pytest.raises(MemoryError, match="1 KV cache pages requested, 0 are free"):
        write_tokens(PagedKVCache(pages), 1)
    assert write_tokens(kv, 9) == [*range(1, 41), 9]


def test_layers_of_different_shapes_are_rejected() -> None:
    kv = PagedKVCache(PagePool(NUM_LAYERS, 4))
    kv.write_and_read(0, torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    with pytest.raises(ValueError, match="different shapes"):
        kv.write_and_read(1, torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8))


def test_resized_pool_is_empty_and_allocates_at_once() -> None:
    pages = PagePool(NUM_LAYERS, 4)
    assert pages.bytes_per_token == 0
    make_filled_caches(pages, 20)
    larger = pages.with_size(50)
    assert larger.num_free == 49 and larger.bytes_per_token == pages.bytes_per_token == NUM_LAYERS * 2 * 2 * 4 * 4
    assert [tuple(buffer.shape) for buffer in larger.buffers] == [(NUM_LAYERS, 50, PAGE_TOKENS, 2, 4)] * 2


@pytest.mark.parametrize("window", [None, 1, 5, PAGE_TOKENS, PAGE_TOKENS + 1, 40, 1000])
@pytest.mark.parametrize("columns", [4, 12])
@torch.inference_mode()
def test_decode_batch_reads_exactly_the_past_of_each_sequence(window: int | None, columns: int) -> None:
    pages = PagePool(NUM_LAYERS, 80)
    lengths = [
        length for length in (0, 1, 14, 15, 16, 17, 31, 46, 47, 48, 63, 100, 191) if length < columns * PAGE_TOKENS
    ]
    kvs = make_filled_caches(pages, *lengths)
    table, positions = (torch.from_numpy(entry) for entry in build_tables(kvs, len(kvs) + 2, columns))
    batch = DecodeBatch(pages, table, positions, torch.float32)
    view = batch.view_for_window(window)
    new = torch.arange(500, 500 + len(table)).float().reshape(1, 1, -1, 1).expand(1, 2, -1, 4)
    for layer in range(NUM_LAYERS):
        keys, values = batch.write_and_read(layer, new + layer, -new, view)
        for index, length in enumerate(lengths):
            allowed = view.mask[index, 0, 0] == 0
            assert (-values[index, 1, allowed, 2]).tolist() == [*range(1, length + 1), 500 + index][-(window or 1000) :]
            assert torch.equal(keys[index, :, allowed] - layer, -values[index, :, allowed])
    assert set(view.mask.unique().tolist()) <= {0.0, float("-inf")}
    if window is not None:
        assert view.table.shape[1] <= (window + PAGE_TOKENS - 2) // PAGE_TOKENS + 1, (
            "pages outside the window are not read"
        )
    assert [write_tokens(kv, 3, commit=False)[:-1] for kv in kvs] == [[*range(1, length + 1)] for length in lengths]


@torch.inference_mode()
def test_reused_page_contains_no_old_values() -> None:
    pages = PagePool(NUM_LAYERS, 6)
    (kv,) = make_filled_caches(pages, 5 * PAGE_TOKENS - 1)
    for layer in range(NUM_LAYERS):
        kv.write_and_read(layer, *[torch.full((1, 2, 1, 4), float("nan"))] * 2)
    pages.buffers[0].fill_(float("nan"))
    del kv
    cache = make_filled_caches(pages, 1)[0]
    batch = DecodeBatch(pages, *(torch.from_numpy(entry) for entry in build_tables([cache], 1, 1)), torch.float32)
    keys, _ = batch.write_and_read(0, *[torch.ones(1, 2, 1, 4)] * 2, batch.view_for_window(None))
    assert bool(keys.isfinite().all())


def test_bucket_sizes_are_sufficient_and_few() -> None:
    assert [bucket_size(count) for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 64)] == [
        *(1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 16, 24, 64)
    ]
    for minimum in (1, MIN_TABLE_COLUMNS):
        assert all(
            count <= bucket_size(count, minimum) <= max(1.5 * count, count + minimum) for count in range(1, 3000)
        )
        assert len({bucket_size(count, minimum) for count in range(1, 3000)}) <= 24


def test_sequences_of_similar_length_share_a_bucket() -> None:
    class FakeCache:
        def __init__(self, length: int) -> None:
            self.length = length

    generator = random.Random(3)
    kvs: Any = [FakeCache(generator.choice([3, 50, 300, 5_000, 100_000])) for _ in range(200)]
    groups = bucket_by_length(kvs)
    assert sorted(index for members, _ in groups for index in members) == list(range(200))
    for members, columns in groups:
        assert len(members) == 1 or len(members) * columns * PAGE_TOKENS <= MAX_TOKENS_READ
        for index in members:
            needed = columns_needed(kvs[index])
            assert needed <= columns <= max(1.5 * needed, needed + MIN_TABLE_COLUMNS)
