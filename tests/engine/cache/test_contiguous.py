"""The contiguous KV cache of one sequence: growth, truncation, copies, and writes that were not committed."""

import torch

from antiphon.engine.cache.base import CAPACITY_STEP_TOKENS, KVCache, round_capacity
from antiphon.engine.cache.contiguous import ContiguousKVCache


@torch.inference_mode()
def write_tokens(kv: KVCache, *tokens: int, layers: int = 2) -> list[float]:
    """Writes these as keys and their negatives as values into every layer. Returns the keys of the first layer."""
    tensor = torch.tensor(tokens, dtype=torch.float32).reshape(1, 1, -1, 1).expand(1, 2, -1, 4)
    views = [kv.write_and_read(layer, tensor + layer, -tensor) for layer in range(layers)]
    for layer, (keys, values) in enumerate(views):
        assert torch.equal(keys - layer, -values)
    return views[0][0][0, 1, :, 3].tolist()  # type: ignore[no-any-return]


def write_and_commit(kv: KVCache, *tokens: int) -> list[float]:
    keys = write_tokens(kv, *tokens)
    kv.commit(len(tokens))
    return keys


def test_uncommitted_tokens_are_overwritten() -> None:
    kv = ContiguousKVCache()
    write_and_commit(kv, 1, 2, 3)
    write_tokens(kv, 8, 9)
    assert kv.length == 3
    assert write_tokens(kv, 4) == [1, 2, 3, 4]


def test_cache_grows_to_the_reserved_capacity_and_keeps_its_tokens() -> None:
    kv = ContiguousKVCache(4)
    write_and_commit(kv, 1, 2, 3, 4)
    assert kv.capacity == 4
    kv.reserve(7)
    kv.reserve(5)
    assert kv.capacity == 7
    assert write_and_commit(kv, 5) == [1, 2, 3, 4, 5]
    assert kv.layers[1][0].shape[2] == 7
    assert write_and_commit(kv, 6, 7, 8) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert kv.capacity == CAPACITY_STEP_TOKENS == round_capacity(8)


def test_truncate_drops_tokens_and_keeps_the_capacity() -> None:
    kv = ContiguousKVCache(6)
    write_and_commit(kv, 1, 2, 3, 4)
    kv.truncate(2)
    kv.truncate(3)
    assert (kv.length, kv.capacity) == (2, 6)
    assert write_tokens(kv, 9) == [1, 2, 9]


def test_copy_is_independent_of_its_source() -> None:
    kv = ContiguousKVCache(6)
    write_and_commit(kv, 1, 2, 3, 4)
    copy = kv.copy(3, 10)
    assert (copy.length, copy.capacity) == (3, 10)
    assert write_and_commit(copy, 7) == [1, 2, 3, 7]
    assert write_tokens(kv, 5) == [1, 2, 3, 4, 5]
    assert copy.layers[0][0].shape[2] == 10


def test_shrink_reduces_the_capacity() -> None:
    kv = ContiguousKVCache(1000)
    write_and_commit(kv, *range(40))
    assert kv.layers[0][1].shape[2] == 1000
    kv.shrink(20)
    assert (kv.length, kv.capacity) == (20, round_capacity(20))
    assert all(buffer.shape[2] == round_capacity(20) for buffers in kv.layers.values() for buffer in buffers[:2])
    assert write_tokens(kv, 99) == [*range(20), 99]


def test_bytes_per_token_counts_keys_and_values_of_all_layers() -> None:
    kv = ContiguousKVCache()
    assert kv.bytes_per_token == 0
    write_tokens(kv, 1, layers=3)
    assert kv.bytes_per_token == 3 * 2 * 2 * 4 * 4
