"""Compiled attention: equal to torch's, and bit-identical for each token in any batch and with any prefill chunks."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.engine.cache.contiguous import MAX_FP16, ContiguousKVCache
from antiphon.engine.forward.attention import AttentionMetadata, SequenceSpan, attend
from antiphon.engine.kernels.bindings import Kernels

NAN, INF = float("nan"), float("inf")

HEAD_SHAPES = [(4, 4, 16), (16, 8, 128), (14, 2, 64), (6, 2, 80), (5, 1, 256), (64, 1, 16)]
"""Query heads, key/value heads, and head dimension."""

CACHED_AND_NEW_COUNTS = [
    (0, 1),
    (0, 70),
    (1, 1),
    (5, 1),
    (5, 40),
    (15, 1),
    (16, 2),
    (63, 1),
    (64, 3),
    (65, 33),
    (200, 1),
    (3, 5),
]
"""Number of cached tokens and of new tokens of each sequence."""


@pytest.fixture(autouse=True)
def inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


class FakeAttentionLayer:
    """The only attribute of an attention module that is read."""

    layer_idx = 0


class AttentionBatch:
    """A batch of sequences with cached tokens and new tokens, packed into one row."""

    def __init__(
        self, lengths: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, *, fp16: bool = False
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.kvs, self.new_counts = [], [new for _, new in lengths]
        for length, new in lengths:
            kv = ContiguousKVCache(length + new, fp16=fp16)
            kv.write_and_read(0, *(torch.randn((1, kv_heads, max(length, 1), dim), generator=generator) for _ in "kv"))
            kv.commit(length)
            self.kvs.append(kv)
        # Laid out as by a model's projections: tokens outside, heads inside, keys and values in one wide row.
        total = sum(self.new_counts)
        self.query = torch.randn((1, total, heads, dim), generator=generator).transpose(1, 2)
        wide = torch.randn((1, total, 2 * kv_heads, dim), generator=generator)
        self.key, self.value = (part.transpose(1, 2) for part in wide.split(kv_heads, 2))

    def positions(self, n: int) -> range:
        """Returns the positions of a sequence's new tokens in the row."""
        first = sum(self.new_counts[:n])
        return range(first, first + self.new_counts[n])

    def attend(
        self, sequences: list[int], kernels: Kernels | None, window: int | None = None, **options: Any
    ) -> Tensor:
        """Returns (new tokens of these sequences, heads, dim). Uses copies of the caches, so that it can be repeated."""
        spans, positions = [], []
        for n in sequences:
            spans.append(
                SequenceSpan(
                    self.kvs[n].copy(self.kvs[n].length, 0), [(len(positions), len(positions) + self.new_counts[n])]
                )
            )
            positions += self.positions(n)
        tensors = (tensor[:, :, positions] for tensor in (self.query, self.key, self.value))
        return call_attend(tensors, AttentionMetadata(spans, make_windows(window), (), kernels), **options)


def make_windows(window: int | None) -> dict[int, int]:
    return {} if window is None else {0: window}


def call_attend(tensors: Iterator[Tensor], attn_metadata: AttentionMetadata, **options: Any) -> Tensor:
    return attend(FakeAttentionLayer(), *tensors, None, attn_metadata=attn_metadata, **options)[0][0]  # type: ignore[arg-type]


@pytest.fixture(params=[False, True], ids=["fp32", "fp16"])
def fp16(request: pytest.FixtureRequest, compiled_kernels: Kernels) -> bool:
    if request.param and not compiled_kernels.supports_fp16_cache:
        pytest.skip("this CPU does not convert fp16")
    return bool(request.param)


@pytest.mark.parametrize("window", [None, 1, 40])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEAD_SHAPES)
def test_compiled_attention_equals_torch_and_is_batch_invariant(
    compiled_kernels: Kernels, fp16: bool, window: int | None, sinks: bool, heads: int, kv_heads: int, dim: int
) -> None:
    batch = AttentionBatch(CACHED_AND_NEW_COUNTS, heads, kv_heads, dim, fp16=fp16)
    options = {"s_aux": torch.linspace(-2, 2, heads)} if sinks else {}
    indices = list(range(len(CACHED_AND_NEW_COUNTS)))
    expected = batch.attend(indices, compiled_kernels, window, **options)
    assert torch.allclose(expected, batch.attend(indices, None, window, **options), atol=1e-5)
    assert expected.shape == (sum(batch.new_counts), heads, dim)
    for n in indices:
        assert torch.equal(batch.attend([n], compiled_kernels, window, **options), expected[batch.positions(n)])
    order = random.Random(1).sample(indices, len(indices))
    positions = [position for n in order for position in batch.positions(n)]
    assert torch.equal(batch.attend(order, compiled_kernels, window, **options), expected[positions])


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_compiled_attention_limits_scores(compiled_kernels: Kernels, fp16: bool, softcap: float) -> None:
    batch, indices = AttentionBatch(CACHED_AND_NEW_COUNTS, 6, 2, 80, fp16=fp16), [*range(len(CACHED_AND_NEW_COUNTS))]
    batch.query.mul_(20)
    expected = batch.attend(indices, None, 40, softcap=softcap)
    limited = batch.attend(indices, compiled_kernels, 40, softcap=softcap)
    assert torch.allclose(limited, expected, atol=1e-4)
    assert not torch.allclose(limited, batch.attend(indices, compiled_kernels, 40), atol=1e-2)
    for n in indices:
        assert torch.equal(batch.attend([n], compiled_kernels, 40, softcap=softcap), limited[batch.positions(n)])


def test_attention_does_not_depend_on_the_number_of_threads(compiled_kernels: Kernels, fp16: bool) -> None:
    batch, indices = (
        AttentionBatch(CACHED_AND_NEW_COUNTS, 16, 8, 128, fp16=fp16),
        list(range(len(CACHED_AND_NEW_COUNTS))),
    )
    expected, before = batch.attend(indices, compiled_kernels), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(batch.attend(indices, compiled_kernels), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("window", [None, 1, 7, 64])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEAD_SHAPES)
def test_attention_does_not_depend_on_the_prefill_chunks(
    compiled_kernels: Kernels, fp16: bool, window: int | None, heads: int, kv_heads: int, dim: int
) -> None:
    length, generator = 150, random.Random(heads)
    batch = AttentionBatch([(0, length)], heads, kv_heads, dim, fp16=fp16)
    tensors = (batch.query, batch.key, batch.value)
    expected = batch.attend([0], compiled_kernels, window)
    for sizes in ([1], [2, 3], [16], [1, 1, 64, 5]):
        kv, bounds = ContiguousKVCache(fp16=fp16), [0]
        while bounds[-1] < length:
            bounds.append(min(bounds[-1] + generator.choice(sizes), length))
        for start, end in pairwise(bounds):
            attn_metadata = AttentionMetadata(
                [SequenceSpan(kv, [(0, end - start)])], make_windows(window), (), compiled_kernels
            )
            piece = call_attend((tensor[:, :, start:end] for tensor in tensors), attn_metadata)
            assert attn_metadata.used_kernels and torch.equal(piece, expected[start:end]), (sizes, start)
            kv.commit(end - start)
        cached = kv.write_and_read(0, *(tensor[:, :, :0] for tensor in tensors[1:]))
        for cached_tensor, new_tensor in zip(cached, tensors[1:], strict=True):
            assert torch.equal(cached_tensor, new_tensor.half().float() if fp16 else new_tensor)


def test_new_tokens_are_written_only_at_their_positions(compiled_kernels: Kernels, fp16: bool) -> None:
    batch = AttentionBatch([(6, 1), (9, 4)], 4, 2, 16, fp16=fp16)
    for kv in batch.kvs:
        kv.reserve(kv.capacity + 3)
        kv.write_and_read(0, *2 * [torch.full((1, 2, kv.capacity - kv.length, 16), 7.0)])
    before = [[buffer.clone() for buffer in kv.layers[0][:2]] for kv in batch.kvs]
    attn_metadata = AttentionMetadata(
        [SequenceSpan(batch.kvs[0], [(0, 1)]), SequenceSpan(batch.kvs[1], [(1, 5)])], {}, (), compiled_kernels
    )
    call_attend(iter((batch.query, batch.key, batch.value)), attn_metadata)
    for n, kv in enumerate(batch.kvs):
        for buffer, old, new in zip(kv.layers[0][:2], before[n], (batch.key, batch.value), strict=True):
            old[:, :, kv.length : kv.length + batch.new_counts[n]] = new[:, :, batch.positions(n)]
            assert torch.equal(buffer, old)


def test_cache_buffer_grows_before_it_is_written(compiled_kernels: Kernels, fp16: bool) -> None:
    batch = AttentionBatch([(4, 1)], 4, 2, 16, fp16=fp16)
    kv = batch.kvs[0]
    kv.shrink(4)
    kv.reserve(900)  # reserved, but not yet allocated
    full = kv.layers[0][0].shape[2]
    for _ in range(full):
        call_attend(
            iter((batch.query, batch.key, batch.value)),
            AttentionMetadata([SequenceSpan(kv, [(0, 1)])], {}, (), compiled_kernels),
        )
        kv.commit(1)
    assert kv.layers[0][0].shape[2] == 900 and kv.length == full + 4
    cached = kv.layers[0][0][:, :, 4 : kv.length]
    assert torch.equal(cached, batch.key.to(cached.dtype).expand(-1, -1, full, -1))


def test_fp16_cache_clamps_values_in_kernels_and_in_torch(compiled_kernels: Kernels) -> None:
    if not compiled_kernels.supports_fp16_cache:
        pytest.skip("this CPU does not convert fp16")
    values = torch.tensor([1e5, -1e5, 65_504.0, 65_519.9, INF, -INF, NAN, 1e-9] * 2).view(1, 1, 1, 16)
    expected = [MAX_FP16, -MAX_FP16, MAX_FP16, MAX_FP16, MAX_FP16, -MAX_FP16, NAN, 0.0] * 2
    for kernels in (compiled_kernels, None):
        kv = ContiguousKVCache(fp16=True)
        call_attend(
            iter((torch.zeros(1, 1, 1, 16), values, values)),
            AttentionMetadata([SequenceSpan(kv, [(0, 1)])], {}, (), kernels),
        )
        for buffer in kv.layers[0][:2]:
            assert torch.equal(buffer[0, 0, 0].float().nan_to_num(-1), torch.tensor(expected).nan_to_num(-1))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_non_finite_inputs_affect_only_their_own_outputs(compiled_kernels: Kernels, value: float) -> None:
    batch = AttentionBatch([(70, 1), (70, 1), (70, 1), (3, 4)], 4, 2, 16)
    expected = batch.attend([0, 1, 2, 3], compiled_kernels)
    batch.query[0, 1, 1, 3] = value  # second head of the second sequence
    batch.value[0, 1, 2, 5] = value  # a value of the third sequence, read by its last two heads
    batch.query[0, 0, 4, 3] = value  # first head of the second token of the last sequence
    result = batch.attend([0, 1, 2, 3], compiled_kernels)
    assert torch.equal(result[0], expected[0]) and torch.equal(result[1, [0, 2, 3]], expected[1, [0, 2, 3]])
    assert result[1, 1].isnan().all() and not result[2, 2:, 5].isfinite().any()
    assert torch.equal(result[2, :2], expected[2, :2])
    assert result[4, 0].isnan().all() and torch.equal(result[4, 1:], expected[4, 1:])
    assert torch.equal(result[[3, 5, 6]], expected[[3, 5, 6]])


def test_extreme_scores_do_not_overflow_the_softmax(compiled_kernels: Kernels) -> None:
    batch = AttentionBatch([(200, 1), (30, 9)], 4, 2, 16)
    query = batch.query
    for factor in (1e-20, 1e3, 1e6):
        batch.query = query * factor
        compiled_output, torch_output = batch.attend([0, 1], compiled_kernels), batch.attend([0, 1], None)
        assert torch.allclose(compiled_output, torch_output, atol=1e-4, rtol=1e-4), factor


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 12), (65, 1, 16), (2, 1, 528)])
def test_unsupported_shapes_use_torch(compiled_kernels: Kernels, heads: int, kv_heads: int, dim: int) -> None:
    batch = AttentionBatch([(0, 1), (5, 1), (30, 2)], heads, kv_heads, dim)
    assert compiled_kernels.explain_unsupported_attention(batch.query, batch.key, batch.value, None)
    assert torch.equal(batch.attend([0, 1, 2], compiled_kernels), batch.attend([0, 1, 2], None))
    attn_metadata = AttentionMetadata([SequenceSpan(batch.kvs[0], [(0, 1)])], {}, (), compiled_kernels)
    call_attend((tensor[:, :, :1] for tensor in (batch.query, batch.key, batch.value)), attn_metadata)
    assert not attn_metadata.used_kernels
