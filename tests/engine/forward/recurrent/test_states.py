"""Caches with states: what may be reused, copied and dropped, and which tensors sequences share."""

import pytest
import torch

from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.recurrent.cache import MAX_SNAPSHOTS, RecurrentCache, find_least_useful, join_states
from antiphon.engine.forward.recurrent.states import StateBatch, StateView
from antiphon.engine.forward.sequential import CONSTANT_CACHE_TOKENS, SequentialForward
from tests.engine.tiny_models import build_tiny_core, make_job, tiny_model

LAYER = 3


def read_tokens(cache: RecurrentCache, count: int) -> None:
    """Reads tokens into a cache whose only state is the number of tokens read."""
    view = StateView(cache.own_states())
    for length in range(cache.length + 1, cache.length + count + 1):
        view.update_recurrent_state(torch.full((1, 2), float(length)), LAYER)
        cache.take_snapshot(LAYER, length)
    cache.commit(count)


def read_state(cache: RecurrentCache) -> float:
    state = StateView(cache.states).get_recurrent_state(LAYER)
    assert state is not None
    return float(state[cache.row, 0])


def make_cache(length: int, *planned: int, state_tokens: int = 0) -> RecurrentCache:
    cache = RecurrentCache(length, state_tokens=state_tokens)
    cache.plan_snapshots(list(planned))
    read_tokens(cache, length)
    return cache


@pytest.mark.parametrize(("limit", "length"), [(99, 20), (20, 20), (19, 12), (12, 12), (11, 4), (3, 0)])
def test_prefixes_end_at_the_last_token_or_at_a_snapshot(limit: int, length: int) -> None:
    cache = make_cache(20, 4, 12)
    assert cache.reusable_length(limit) == length
    clone = cache.copy(length, 30)
    assert clone.length == length and (not length or read_state(clone) == length)
    cache.truncate(length)
    assert cache.length == length and (not length or read_state(cache) == length)
    assert cache.snapshot_lengths == clone.snapshot_lengths == [n for n in (4, 12) if n <= length]


@torch.inference_mode()
def test_copies_and_sources_do_not_change_each_other() -> None:
    cache = make_cache(20, 12)
    clone = cache.copy(12, 30)
    for other in (cache, clone):
        state = StateView(other.own_states()).get_recurrent_state(LAYER)
        assert state is not None
        state.add_(100)
    assert (read_state(cache), read_state(clone)) == (120, 112)
    assert read_state(cache.copy(12, 30)) == read_state(clone.copy(12, 30)) - 100 == 12


@torch.inference_mode()
def test_snapshot_is_unchanged_when_a_layer_changes_the_state_in_place() -> None:
    cache = make_cache(12, 12)
    state = StateView(cache.own_states()).get_recurrent_state(LAYER)
    assert state is not None
    state.add_(100)
    cache.commit(1)
    assert cache.reusable_length(12) == 12 and read_state(cache.copy(12, 12)) == 12


def test_snapshots_are_not_planned_for_tokens_already_read() -> None:
    cache = make_cache(20)
    cache.plan_snapshots([10, 20, 25])
    read_tokens(cache, 10)
    assert cache.snapshot_lengths == [25]


def test_number_of_snapshots_is_limited_and_counted_as_memory() -> None:
    cache = make_cache(200, 10, 20, 50, 100, 130, state_tokens=7)
    assert cache.snapshot_lengths == [50, 100, 130]
    assert cache.memory_tokens == cache.capacity + 7 * (1 + MAX_SNAPSHOTS)
    cache.shrink(50)
    cache.park()
    assert cache.memory_tokens == cache.capacity + 7 * 2
    cache.unpark()
    assert cache.memory_tokens == cache.capacity + 7 * (1 + MAX_SNAPSHOTS)


@pytest.mark.parametrize(
    ("lengths", "least"), [([64, 1024, 1088, 2048], 64), ([512, 576, 2048], 576), ([100, 200, 250], 100)]
)
def test_least_useful_snapshot_costs_fewest_tokens_and_is_not_the_longest(lengths: list[int], least: int) -> None:
    assert find_least_useful(lengths) == least


def test_sequences_keep_their_batch_while_they_run_together() -> None:
    a, b, c = (make_cache(length) for length in (4, 5, 6))
    batch = join_states([a, b, c])
    assert join_states([a, b, c]) is batch and [read_state(cache) for cache in (a, b, c)] == [4, 5, 6]
    turned = join_states([b, a, c])
    assert turned is not batch and [read_state(cache) for cache in (a, b, c)] == [4, 5, 6]
    other = join_states([c, a])
    assert other is not batch and [read_state(cache) for cache in (a, b, c)] == [4, 5, 6]
    b.park()
    assert b.states.size == 1 and read_state(b) == 5
    padded = join_states([c, a], 4)
    assert padded.size == 4 and join_states([c, a], 4) is padded


@pytest.mark.parametrize("parts", [[7], [1, 6], [2, 2, 3], [1] * 7])
def test_convolution_states_are_the_last_inputs(parts: list[int]) -> None:
    inputs = torch.arange(1.0, 8.0)[None, None]
    view = StateView(StateBatch())
    assert not view.has_previous_state(LAYER)
    seen = [view.update_conv_state(part, LAYER, conv_kernel_size=3) for part in torch.split(inputs, parts, dim=-1)]
    state = view.get_conv_state(LAYER)
    assert state is not None and state.flatten().tolist() == [5, 6, 7]
    assert seen[-1].flatten().tolist()[-parts[-1] :] == list(range(8 - parts[-1], 8))
    assert view.has_previous_state(LAYER) and not view.has_previous_state(LAYER + 1)


@pytest.mark.parametrize(("family", "bytes_per_token"), [("bloom", 2 * 4 * 2 * 32), ("lfm2", 2 * 4 * 16)])
@pytest.mark.filterwarnings("ignore")
@torch.inference_mode()
def test_memory_of_a_sequence_on_the_sequential_path_is_measured(family: str, bytes_per_token: int) -> None:
    forward = SequentialForward(tiny_model(family))
    forward.measure_memory(list(range(3, 35)))
    assert forward.bytes_per_token == bytes_per_token
    conv_state_bytes = 4 * 32 * 3 if family == "lfm2" else 0
    assert forward.state_tokens == conv_state_bytes // bytes_per_token
    cache = forward.new_cache(0)
    assert cache.memory_tokens == forward.state_tokens
    forward.run([SequenceInput(cache, [5, 6, 7], 1)])
    assert cache.memory_tokens == forward.state_tokens + 3


def test_states_that_do_not_grow_count_as_a_fixed_number_of_tokens() -> None:
    forward = SequentialForward(tiny_model("mamba"))
    forward.measure_memory(list(range(3, 35)))
    assert forward.state_tokens == CONSTANT_CACHE_TOKENS


def test_memory_limits_the_sequences_on_the_sequential_path(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = SequentialForward(tiny_model("qwen3"))
    forward.measure_memory(list(range(3, 35)))
    monkeypatch.setattr("antiphon.engine.model_build.stages.select_forward", lambda *_, **__: forward)
    gib = 64 * forward.bytes_per_token / 2**30
    core = build_tiny_core("qwen3", max_num_seqs=8, kv_cache_gib=gib, max_model_len=60)
    for n in range(4):
        core.add(make_job(list(range(3, 23)), str(n), max_tokens=3))
    most = 0
    while core.has_work:
        core.step()
        most = max(most, len(core.scheduler.running))
    assert most == 3
