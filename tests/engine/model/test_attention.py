"""Compiled attention: what torch computes, for each token the same bits however its text came, and only its own."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from antiphon.engine.cache.contiguous import MAX_FP16, ContiguousKVCache
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.attention import AttentionMetadata, SequenceSpan, attend

NAN, INF = float("nan"), float("inf")

SHAPES = [(4, 4, 16), (16, 8, 128), (14, 2, 64), (6, 2, 80), (5, 1, 256), (64, 1, 16)]
"""Heads, heads of keys, and their size."""

CROWD = [(0, 1), (0, 70), (1, 1), (5, 1), (5, 40), (15, 1), (16, 2), (63, 1), (64, 3), (65, 33), (200, 1), (3, 5)]
"""Tokens that sequences have, and how many new ones come."""


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Layer:
    """All of an attention module that is asked for."""

    layer_idx = 0


class Crowd:
    """Sequences with a past and new tokens, in one row."""

    def __init__(
        self, members: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, *, halves: bool = False
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.kvs, self.news = [], [new for _, new in members]
        for length, new in members:
            kv = ContiguousKVCache(length + new, fp16=halves)
            kv.write_and_read(0, *(torch.randn((1, kv_heads, max(length, 1), dim), generator=generator) for _ in "kv"))
            kv.commit(length)
            self.kvs.append(kv)
        # As a model's projections leave them: tokens outside, heads inside, keys and values in one wide row.
        total = sum(self.news)
        self.query = torch.randn((1, total, heads, dim), generator=generator).transpose(1, 2)
        wide = torch.randn((1, total, 2 * kv_heads, dim), generator=generator)
        self.key, self.value = (part.transpose(1, 2) for part in wide.split(kv_heads, 2))

    def places(self, n: int) -> range:
        """Where the tokens of one stand in the row."""
        first = sum(self.news[:n])
        return range(first, first + self.news[n])

    def attend(self, which: list[int], kernels: Kernels | None, window: int | None = None, **options: Any) -> Tensor:
        """(tokens of these, heads, dim); of copies, so that it can be asked again."""
        spans, places = [], []
        for n in which:
            spans.append(
                SequenceSpan(self.kvs[n].copy(self.kvs[n].length, 0), [(len(places), len(places) + self.news[n])])
            )
            places += self.places(n)
        given = (tensor[:, :, places] for tensor in (self.query, self.key, self.value))
        return attended(given, AttentionMetadata(spans, windowed(window), (), kernels), **options)


def windowed(window: int | None) -> dict[int, int]:
    return {} if window is None else {0: window}


def attended(given: Iterator[Tensor], attn_metadata: AttentionMetadata, **options: Any) -> Tensor:
    return attend(Layer(), *given, None, attn_metadata=attn_metadata, **options)[0][0]  # type: ignore[arg-type]


@pytest.fixture(params=[False, True], ids=["fp32", "fp16"])
def halves(request: pytest.FixtureRequest, compiled: Kernels) -> bool:
    if request.param and not compiled.supports_fp16_cache:
        pytest.skip("this CPU does not convert fp16")
    return bool(request.param)


@pytest.mark.parametrize("window", [None, 1, 40])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_it_is_torchs_and_knows_no_neighbours(
    compiled: Kernels, halves: bool, window: int | None, sinks: bool, heads: int, kv_heads: int, dim: int
) -> None:
    crowd = Crowd(CROWD, heads, kv_heads, dim, halves=halves)
    options = {"s_aux": torch.linspace(-2, 2, heads)} if sinks else {}
    everybody = list(range(len(CROWD)))
    together = crowd.attend(everybody, compiled, window, **options)
    assert torch.allclose(together, crowd.attend(everybody, None, window, **options), atol=1e-5)
    assert together.shape == (sum(crowd.news), heads, dim)
    for n in everybody:
        assert torch.equal(crowd.attend([n], compiled, window, **options), together[crowd.places(n)])
    order = random.Random(1).sample(everybody, len(everybody))
    places = [place for n in order for place in crowd.places(n)]
    assert torch.equal(crowd.attend(order, compiled, window, **options), together[places])


def test_threads_change_nothing(compiled: Kernels, halves: bool) -> None:
    crowd, everybody = Crowd(CROWD, 16, 8, 128, halves=halves), list(range(len(CROWD)))
    together, before = crowd.attend(everybody, compiled), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(crowd.attend(everybody, compiled), together)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("window", [None, 1, 7, 64])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_however_a_text_is_cut_it_is_the_same(
    compiled: Kernels, halves: bool, window: int | None, heads: int, kv_heads: int, dim: int
) -> None:
    length, chance = 150, random.Random(heads)
    crowd = Crowd([(0, length)], heads, kv_heads, dim, halves=halves)
    given = (crowd.query, crowd.key, crowd.value)
    whole = crowd.attend([0], compiled, window)
    for sizes in ([1], [2, 3], [16], [1, 1, 64, 5]):
        kv, bounds = ContiguousKVCache(fp16=halves), [0]
        while bounds[-1] < length:
            bounds.append(min(bounds[-1] + chance.choice(sizes), length))
        for start, end in pairwise(bounds):
            attn_metadata = AttentionMetadata([SequenceSpan(kv, [(0, end - start)])], windowed(window), (), compiled)
            piece = attended((tensor[:, :, start:end] for tensor in given), attn_metadata)
            assert attn_metadata.used_kernels and torch.equal(piece, whole[start:end]), (sizes, start)
            kv.commit(end - start)
        stored = kv.write_and_read(0, *(tensor[:, :, :0] for tensor in given[1:]))
        for one, two in zip(stored, given[1:], strict=True):
            assert torch.equal(one, two.half().float() if halves else two)


def test_tokens_are_written_where_they_belong_and_nowhere_else(compiled: Kernels, halves: bool) -> None:
    crowd = Crowd([(6, 1), (9, 4)], 4, 2, 16, halves=halves)
    for kv in crowd.kvs:
        kv.reserve(kv.capacity + 3)
        kv.write_and_read(0, *2 * [torch.full((1, 2, kv.capacity - kv.length, 16), 7.0)])
    before = [[held.clone() for held in kv._layers[0][:2]] for kv in crowd.kvs]
    attn_metadata = AttentionMetadata(
        [SequenceSpan(crowd.kvs[0], [(0, 1)]), SequenceSpan(crowd.kvs[1], [(1, 5)])], {}, (), compiled
    )
    attended(iter((crowd.query, crowd.key, crowd.value)), attn_metadata)
    for n, kv in enumerate(crowd.kvs):
        for held, old, new in zip(kv._layers[0][:2], before[n], (crowd.key, crowd.value), strict=True):
            old[:, :, kv.length : kv.length + crowd.news[n]] = new[:, :, crowd.places(n)]
            assert torch.equal(held, old)


def test_a_buffer_that_is_too_small_grows_first(compiled: Kernels, halves: bool) -> None:
    crowd = Crowd([(4, 1)], 4, 2, 16, halves=halves)
    kv = crowd.kvs[0]
    kv.shrink(4)
    kv.reserve(900)  # promised, and not yet taken
    full = kv._layers[0][0].shape[2]
    for _ in range(full):
        attended(
            iter((crowd.query, crowd.key, crowd.value)),
            AttentionMetadata([SequenceSpan(kv, [(0, 1)])], {}, (), compiled),
        )
        kv.commit(1)
    assert kv._layers[0][0].shape[2] == 900 and kv.length == full + 4
    stored = kv._layers[0][0][:, :, 4 : kv.length]
    assert torch.equal(stored, crowd.key.to(stored.dtype).expand(-1, -1, full, -1))


def test_what_fp16_cannot_hold_becomes_its_largest_number_by_kernels_and_by_torch(compiled: Kernels) -> None:
    if not compiled.supports_fp16_cache:
        pytest.skip("this CPU does not convert fp16")
    given = torch.tensor([1e5, -1e5, 65_504.0, 65_519.9, INF, -INF, NAN, 1e-9] * 2).view(1, 1, 1, 16)
    kept = [MAX_FP16, -MAX_FP16, MAX_FP16, MAX_FP16, MAX_FP16, -MAX_FP16, NAN, 0.0] * 2
    for kernels in (compiled, None):
        kv = ContiguousKVCache(fp16=True)
        attended(
            iter((torch.zeros(1, 1, 1, 16), given, given)),
            AttentionMetadata([SequenceSpan(kv, [(0, 1)])], {}, (), kernels),
        )
        for held in kv._layers[0][:2]:
            assert torch.equal(held[0, 0, 0].float().nan_to_num(-1), torch.tensor(kept).nan_to_num(-1))


@pytest.mark.parametrize("strange", [NAN, INF, -INF])
def test_what_is_no_number_stays_with_whom_it_concerns(compiled: Kernels, strange: float) -> None:
    crowd = Crowd([(70, 1), (70, 1), (70, 1), (3, 4)], 4, 2, 16)
    sound = crowd.attend([0, 1, 2, 3], compiled)
    crowd.query[0, 1, 1, 3] = strange  # the second head of the second
    crowd.value[0, 1, 2, 5] = strange  # a value of the third, seen by its last two heads
    crowd.query[0, 0, 4, 3] = strange  # the first head of the second token of the last
    result = crowd.attend([0, 1, 2, 3], compiled)
    assert torch.equal(result[0], sound[0]) and torch.equal(result[1, [0, 2, 3]], sound[1, [0, 2, 3]])
    assert result[1, 1].isnan().all() and not result[2, 2:, 5].isfinite().any()
    assert torch.equal(result[2, :2], sound[2, :2])
    assert result[4, 0].isnan().all() and torch.equal(result[4, 1:], sound[4, 1:])
    assert torch.equal(result[[3, 5, 6]], sound[[3, 5, 6]])


def test_scores_beyond_what_can_be_raised_to_a_power(compiled: Kernels) -> None:
    crowd = Crowd([(200, 1), (30, 9)], 4, 2, 16)
    query = crowd.query
    for factor in (1e-20, 1e3, 1e6):
        crowd.query = query * factor
        one, two = crowd.attend([0, 1], compiled), crowd.attend([0, 1], None)
        assert torch.allclose(one, two, atol=1e-4, rtol=1e-4), factor


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 12), (65, 1, 16), (2, 1, 528)])
def test_shapes_they_do_not_know_are_left_to_torch(compiled: Kernels, heads: int, kv_heads: int, dim: int) -> None:
    crowd = Crowd([(0, 1), (5, 1), (30, 2)], heads, kv_heads, dim)
    assert not compiled.supports_attention(crowd.query, crowd.key, crowd.value, None)
    assert torch.equal(crowd.attend([0, 1, 2], compiled), crowd.attend([0, 1, 2], None))
    attn_metadata = AttentionMetadata([SequenceSpan(crowd.kvs[0], [(0, 1)])], {}, (), compiled)
    attended((tensor[:, :, :1] for tensor in (crowd.query, crowd.key, crowd.value)), attn_metadata)
    assert not attn_metadata.used_kernels
