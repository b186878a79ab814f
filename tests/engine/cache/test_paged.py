"""Paged caches: what they hold is what was written, whoever shares it; and batches that read many of them at once."""

import random
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from antiphon.engine.cache.paged import PAGE_TOKENS, PagedKVCache, PagePool
from antiphon.engine.model.decode_batch import (
    MAX_TOKENS_READ,
    MIN_TABLE_COLUMNS,
    DecodeBatch,
    bucket_by_length,
    bucket_size,
    build_tables,
    columns_needed,
)

LAYERS = 2
MANY = 12


@torch.inference_mode()
def said(kv: PagedKVCache, *tokens: int, commit: bool = True) -> list[int]:
    """Write these tokens into every layer; what the first layer holds then."""
    row = torch.tensor(tokens, dtype=torch.float32).reshape(1, 1, -1, 1).expand(1, 2, -1, 4)
    views = [kv.write_and_read(layer, row + layer, -row) for layer in range(LAYERS)]
    for layer, (keys, values) in enumerate(views):
        assert torch.equal(keys - layer, -values)
    if commit:
        kv.commit(len(tokens))
    return [int(token) for token in views[0][0][0, 1, :, 3].tolist()]


def filled(pages: PagePool, *lengths: int) -> list[PagedKVCache]:
    """One sequence of each of these lengths, whose tokens are 1, 2, 3, …"""
    kvs = [PagedKVCache(pages) for _ in lengths]
    for kv, length in zip(kvs, lengths, strict=True):
        if length:
            said(kv, *range(1, length + 1))
    return kvs


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_written_cut_copied_and_dropped_each_reads_its_own(seed: int) -> None:
    dice, count = random.Random(seed), 250
    pages = PagePool(LAYERS, count)
    held: list[tuple[PagedKVCache, list[int]]] = []
    for step in range(400):
        deed = dice.choice(["new", "write", "write", "write", "fail", "cut", "copy", "shrink", "drop"])
        if (deed == "new" and len(held) < MANY) or not held:
            held.append((PagedKVCache(pages, dice.randrange(40)), []))
            continue
        kv, tokens = held[dice.randrange(len(held))]
        part = dice.randrange(len(tokens) + 1)
        new = [1000 + step * 50 + n for n in range(dice.choice([1, 1, 3, PAGE_TOKENS, 40]))]
        if deed == "copy" and len(held) < MANY:
            held.append((kv.copy(part, part + dice.randrange(30)), tokens[:part]))
        elif deed in ("write", "fail") and len(tokens) < 200:
            assert said(kv, *new, commit=deed == "write") == tokens + new
            tokens += new if deed == "write" else []
        elif deed in ("cut", "shrink"):
            (kv.truncate if deed == "cut" else kv.shrink)(part)
            del tokens[part:]
        elif deed == "drop":
            held.remove((kv, tokens))
        del kv
        assert [one.length for one, _ in held] == [len(tokens) for _, tokens in held]
        assert all(one.capacity % PAGE_TOKENS == 0 and one.capacity >= one.length for one, _ in held)
        assert count - 1 - pages.num_free <= sum(one.capacity for one, _ in held) // PAGE_TOKENS, "sharing only saves"
    for one, tokens in held:
        assert said(one, 7, commit=False) == [*tokens, 7]
    del one
    held.clear()
    assert pages.num_free == count - 1


def test_a_copy_has_the_pages_of_its_source_until_one_of_them_writes() -> None:
    pages = PagePool(LAYERS, 20)
    (kv,) = filled(pages, 40)
    free = pages.num_free
    twin = kv.copy(36, 36)
    assert pages.num_free == free and twin.table == kv.table
    said(twin, 99)
    assert pages.num_free == free - 1 and twin.table[:2] == kv.table[:2] and twin.table[2] != kv.table[2]
    assert said(kv, 5) == [*range(1, 41), 5] and pages.num_free == free - 1


def test_too_few_pages_are_an_error_and_change_nothing() -> None:
    pages = PagePool(LAYERS, 4)
    (kv,) = filled(pages, 40)
    with pytest.raises(MemoryError, match="1 pages of the cache are wanted, 0 are free"):
        said(PagedKVCache(pages), 1)
    assert said(kv, 9) == [*range(1, 41), 9]


def test_layers_of_different_shapes_are_refused() -> None:
    kv = PagedKVCache(PagePool(LAYERS, 4))
    kv.write_and_read(0, torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    with pytest.raises(ValueError, match="different shapes"):
        kv.write_and_read(1, torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8))


def test_an_enlarged_memory_is_empty_and_takes_its_room_at_once() -> None:
    pages = PagePool(LAYERS, 4)
    assert pages.bytes_per_token == 0
    filled(pages, 20)
    larger = pages.resized(50)
    assert larger.num_free == 49 and larger.bytes_per_token == pages.bytes_per_token == LAYERS * 2 * 2 * 4 * 4
    assert [tuple(half.shape) for half in larger._buffers] == [(LAYERS, 50, PAGE_TOKENS, 2, 4)] * 2


@pytest.mark.parametrize("window", [None, 1, 5, PAGE_TOKENS, PAGE_TOKENS + 1, 40, 1000])
@pytest.mark.parametrize("columns", [4, 12])
@torch.inference_mode()
def test_a_batch_sees_of_each_exactly_its_past(window: int | None, columns: int) -> None:
    pages = PagePool(LAYERS, 80)
    lengths = [
        length for length in (0, 1, 14, 15, 16, 17, 31, 46, 47, 48, 63, 100, 191) if length < columns * PAGE_TOKENS
    ]
    kvs = filled(pages, *lengths)
    table, positions = (torch.from_numpy(entry) for entry in build_tables(kvs, len(kvs) + 2, columns))
    batch = DecodeBatch(pages, table, positions, torch.float32)
    view = batch.view_for_window(window)
    new = torch.arange(500, 500 + len(table)).float().reshape(1, 1, -1, 1).expand(1, 2, -1, 4)
    for layer in range(LAYERS):
        keys, values = batch.write_and_read(layer, new + layer, -new, view)
        for row, length in enumerate(lengths):
            allowed = view.mask[row, 0, 0] == 0
            assert (-values[row, 1, allowed, 2]).tolist() == [*range(1, length + 1), 500 + row][-(window or 1000) :]
            assert torch.equal(keys[row, :, allowed] - layer, -values[row, :, allowed])
    assert set(view.mask.unique().tolist()) <= {0.0, float("-inf")}
    if window is not None:
        assert view.table.shape[1] <= (window + PAGE_TOKENS - 2) // PAGE_TOKENS + 1, (
            "no page is read in which nothing can be seen"
        )
    assert [said(kv, 3, commit=False)[:-1] for kv in kvs] == [[*range(1, length + 1)] for length in lengths]


@torch.inference_mode()
def test_a_page_is_given_out_empty() -> None:
    pages = PagePool(LAYERS, 6)
    (kv,) = filled(pages, 5 * PAGE_TOKENS - 1)
    for layer in range(LAYERS):
        kv.write_and_read(layer, *[torch.full((1, 2, 1, 4), float("nan"))] * 2)
    pages._buffers[0].fill_(float("nan"))
    del kv
    one = filled(pages, 1)[0]
    batch = DecodeBatch(pages, *(torch.from_numpy(entry) for entry in build_tables([one], 1, 1)), torch.float32)
    keys, _ = batch.write_and_read(0, *[torch.ones(1, 2, 1, 4)] * 2, batch.view_for_window(None))
    assert bool(keys.isfinite().all())


def test_sizes_hold_what_is_asked_for_and_are_few() -> None:
    assert [bucket_size(count) for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 64)] == [
        *(1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 16, 24, 64)
    ]
    for least in (1, MIN_TABLE_COLUMNS):
        assert all(count <= bucket_size(count, least) <= max(1.5 * count, count + least) for count in range(1, 3000))
        assert len({bucket_size(count, least) for count in range(1, 3000)}) <= 24


def test_sequences_of_about_one_length_are_read_together_within_bounds() -> None:
    class Long:
        def __init__(self, length: int) -> None:
            self.length = length

    dice = random.Random(3)
    kvs: Any = [Long(dice.choice([3, 50, 300, 5_000, 100_000])) for _ in range(200)]
    groups = bucket_by_length(kvs)
    assert sorted(number for members, _ in groups for number in members) == list(range(200))
    for members, columns in groups:
        assert len(members) == 1 or len(members) * columns * PAGE_TOKENS <= MAX_TOKENS_READ
        for number in members:
            needed = columns_needed(kvs[number])
            assert needed <= columns <= max(1.5 * needed, needed + MIN_TABLE_COLUMNS)
