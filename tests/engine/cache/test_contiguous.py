"""The memory of one sequence: growing, cutting, copying, and what a failed pass leaves."""

import pytest

pytest.importorskip("torch")

import torch

from antiphon.engine.cache.base import CAPACITY_STEP_TOKENS, KVCache, round_capacity
from antiphon.engine.cache.contiguous import ContiguousKVCache


@torch.inference_mode()
def write(kv: KVCache, *values: int, layers: int = 2) -> list[float]:
    """Write these as keys and their negatives as values into every layer; the keys of the first layer."""
    row = torch.tensor(values, dtype=torch.float32).reshape(1, 1, -1, 1).expand(1, 2, -1, 4)
    views = [kv.write_and_read(layer, row + layer, -row) for layer in range(layers)]
    for layer, (keys, old) in enumerate(views):
        assert torch.equal(keys - layer, -old)
    return views[0][0][0, 1, :, 3].tolist()  # type: ignore[no-any-return]


def committed(kv: KVCache, *values: int) -> list[float]:
    read = write(kv, *values)
    kv.commit(len(values))
    return read


def test_what_was_not_committed_is_written_over() -> None:
    kv = ContiguousKVCache()
    committed(kv, 1, 2, 3)
    write(kv, 8, 9)
    assert kv.length == 3
    assert write(kv, 4) == [1, 2, 3, 4]


def test_it_grows_by_what_is_reserved_and_keeps_what_it_holds() -> None:
    kv = ContiguousKVCache(4)
    committed(kv, 1, 2, 3, 4)
    assert kv.capacity == 4
    kv.reserve(7)
    kv.reserve(5)
    assert kv.capacity == 7
    assert committed(kv, 5) == [1, 2, 3, 4, 5]
    assert kv._layers[1][0].shape[2] == 7
    assert committed(kv, 6, 7, 8) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert kv.capacity == CAPACITY_STEP_TOKENS == round_capacity(8)


def test_a_cut_forgets_the_end_and_keeps_the_memory() -> None:
    kv = ContiguousKVCache(6)
    committed(kv, 1, 2, 3, 4)
    kv.truncate(2)
    kv.truncate(3)
    assert (kv.length, kv.capacity) == (2, 6)
    assert write(kv, 9) == [1, 2, 9]


def test_a_copy_shares_nothing_with_its_source() -> None:
    kv = ContiguousKVCache(6)
    committed(kv, 1, 2, 3, 4)
    twin = kv.copy(3, 10)
    assert (twin.length, twin.capacity) == (3, 10)
    assert committed(twin, 7) == [1, 2, 3, 7]
    assert write(kv, 5) == [1, 2, 3, 4, 5]
    assert twin._layers[0][0].shape[2] == 10


def test_shrinking_gives_memory_back() -> None:
    kv = ContiguousKVCache(1000)
    committed(kv, *range(40))
    assert kv._layers[0][1].shape[2] == 1000
    kv.shrink(20)
    assert (kv.length, kv.capacity) == (20, round_capacity(20))
    assert all(buffer.shape[2] == round_capacity(20) for held in kv._layers.values() for buffer in held[:2])
    assert write(kv, 99) == [*range(20), 99]


def test_bytes_count_all_layers_and_both_halves() -> None:
    kv = ContiguousKVCache()
    assert kv.bytes_per_token == 0
    write(kv, 1, layers=3)
    assert kv.bytes_per_token == 3 * 2 * 2 * 4 * 4
