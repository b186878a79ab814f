"""The prefix cache: which sequences may read an entry, what is evicted first, and that reuse changes no token."""

import gc
import weakref
from array import array

import pytest

from antiphon.engine.cache.base import KVCache
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.protocol import Chunk
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.prefix_cache import MIN_PREFIX_TOKENS, PrefixCache
from antiphon.engine.scheduler.sequence import common_prefix_length
from tests.engine.fake_model import build_core_with_fake_model, generate_without_reuse, make_tokens
from tests.engine.tiny_models import build_tiny_core, generate_tokens, join_tokens, make_job, run_jobs

CACHE_KEY = ("me", "")


def insert_entry(cache: PrefixCache, tokens: list[int], key: tuple[str, str] = CACHE_KEY, capacity: int = 0) -> KVCache:
    kv = ContiguousKVCache(capacity or len(tokens))
    kv.commit(len(tokens))
    cache.insert(key, array("i", tokens), kv)
    return kv


def find_match_length(cache: PrefixCache, tokens: list[int], key: tuple[str, ...] = CACHE_KEY) -> int:
    return cache.longest_match(key, array("i", tokens), len(tokens))[1]


def is_idle(core: Core) -> bool:
    stats = core.stats()
    return not core.has_work and stats.running == stats.waiting == stats.running_cache_tokens == 0


def count_cached_tokens(chunks: list[Chunk]) -> int:
    assert not any(chunk.cached_tokens for chunk in chunks[1:])
    return chunks[0].cached_tokens


def sum_capacities(core: Core) -> int:
    return core.cache_manager.prefix_cache.capacity_tokens + sum(
        sequence.cache.capacity for sequence in core.scheduler.running
    )


@pytest.mark.parametrize("turns", [2, 4])
def test_growing_conversation_reuses_one_entry_without_a_copy(turns: int) -> None:
    core, _ = build_core_with_fake_model(max_model_len=4000)
    text, addresses = make_tokens(1500), set()
    for turn in range(turns):
        chunks = run_jobs(core, make_job(text, str(turn), max_tokens=20))[str(turn)]
        assert count_cached_tokens(chunks) == (0 if not turn else len(text) - 31)
        (entry,) = core.cache_manager.prefix_cache.entries
        addresses.add(entry.cache.layers[0].addresses)  # type: ignore[attr-defined]
        text = [*text, *join_tokens(chunks), *make_tokens(30, turn)]
    assert len(addresses) == 1 and entry.cache.capacity < 1.2 * len(text)


# The prefix cache by itself.


@pytest.mark.parametrize("index", [0, 1, 7, 299, 300])
def test_common_prefix_length_ends_at_the_first_difference(index: int) -> None:
    a, b = array("i", range(300)), array("i", range(300))
    if index < 300:
        b[index] = -1
    assert common_prefix_length(a, b, 300) == index
    assert common_prefix_length(a, b, 5) == min(index, 5)
    assert common_prefix_length(a, b[:20], 300) == min(index, 20)
    assert (
        common_prefix_length(array("i"), b, 9) == common_prefix_length(a, b, 0) == common_prefix_length(a, b, -1) == 0
    )


def test_longest_match_prefers_the_shortest_of_equal_entries() -> None:
    cache = PrefixCache()
    common = make_tokens(30)
    insert_entry(cache, [*common, 50, *make_tokens(90)])
    short = insert_entry(cache, [*common, 51, *make_tokens(20)])
    insert_entry(cache, [*common[:20], 52])
    best, length = cache.longest_match(CACHE_KEY, array("i", [*common, 60, 61]), 31)
    assert best is not None and best.cache is short and length == 30
    assert find_match_length(cache, [*common[:20], 52, 53]) == 21
    assert find_match_length(cache, make_tokens(30)[: MIN_PREFIX_TOKENS - 1]) == 0
    assert find_match_length(cache, [1, *common]) == 0


def test_entries_are_not_shared_between_keys() -> None:
    cache = PrefixCache()
    insert_entry(cache, make_tokens(40), ("a", "x"))
    assert [
        find_match_length(cache, make_tokens(40), key) for key in [("a", "x"), ("a", ""), ("", "x"), ("b", "x")]
    ] == [
        40,
        0,
        0,
        0,
    ]


def test_entry_that_is_a_prefix_of_another_is_dropped() -> None:
    cache = PrefixCache()
    insert_entry(cache, make_tokens(40))
    insert_entry(cache, make_tokens(60))
    insert_entry(cache, make_tokens(50))
    insert_entry(cache, make_tokens(30), ("other", ""))
    assert (len(cache), cache.num_tokens) == (2, 90)


def test_short_sequences_are_not_cached() -> None:
    cache = PrefixCache()
    insert_entry(cache, make_tokens(MIN_PREFIX_TOKENS - 1))
    assert not len(cache)


def test_entry_with_much_excess_capacity_is_shrunk() -> None:
    cache = PrefixCache()
    insert_entry(cache, make_tokens(100), capacity=150)
    insert_entry(cache, make_tokens(100, 1), capacity=400)
    assert cache.capacity_tokens == 150 + 112


def test_least_recently_used_entry_is_evicted_first() -> None:
    cache = PrefixCache()
    for n in range(4):
        insert_entry(cache, make_tokens(100, n))
    best, _ = cache.longest_match(CACHE_KEY, array("i", make_tokens(100, 0)), 99)
    assert best is not None
    cache.mark_used(best)
    cache.evict_to(300)
    assert [bool(find_match_length(cache, make_tokens(100, n))) for n in range(4)] == [True, False, True, True]
    cache.evict_to(150, spared=best)
    assert [bool(find_match_length(cache, make_tokens(100, n))) for n in range(4)] == [True, False, False, False]


def test_last_entry_is_truncated_before_it_is_evicted() -> None:
    cache = PrefixCache()
    insert_entry(cache, make_tokens(400))
    cache.evict_to(300)
    length = find_match_length(cache, make_tokens(400))
    assert 200 < length < 300 and cache.capacity_tokens <= 300 and cache.num_tokens == length
    cache.evict_to(50)
    assert not len(cache) and cache.capacity_tokens == 0


def test_evicted_entry_is_freed() -> None:
    cache = PrefixCache()
    evicted = weakref.ref(insert_entry(cache, make_tokens(100)))
    insert_entry(cache, make_tokens(90, 1))
    cache.evict_to(95)
    gc.collect()
    assert evicted() is None


# The prefix cache of a core.


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "mistral"])
def test_prefix_reuse_changes_no_token(family: str) -> None:
    """Covers sliding windows, sinks and grouped heads: entries are taken over, copied, and cut where texts diverge."""
    core, uncached = (
        build_tiny_core(family, max_batched_tokens=16, max_num_seqs=3),
        build_tiny_core(family, max_batched_tokens=16, max_num_seqs=3),
    )
    uncached.cache_manager.enable_prefix_caching = False
    first = make_tokens(60)
    history = [*first, *generate_tokens(core, make_job(first, max_tokens=20, ignore_eos=True)), *make_tokens(9)]
    prompts = [history, [*history[:50], *make_tokens(30, 4)], first, [*history[:70], *make_tokens(20, 2)]]
    cached_counts = []
    for prompt in prompts:
        job = make_job(prompt, max_tokens=12, ignore_eos=True)
        chunks = run_jobs(core, job)["j"]
        assert join_tokens(chunks) == generate_tokens(uncached, job)
        cached_counts.append(count_cached_tokens(chunks))
    assert cached_counts == [79, 50, 59, 70]
    jobs = [make_job(prompt, str(n), max_tokens=12, ignore_eos=True) for n, prompt in enumerate(prompts)]
    results = run_jobs(core, *jobs), run_jobs(uncached, *jobs)
    assert [join_tokens(results[0][str(n)]) for n in range(4)] == [join_tokens(results[1][str(n)]) for n in range(4)]
    assert is_idle(core) and not len(uncached.cache_manager.prefix_cache)


def test_resent_history_is_read_from_the_cache() -> None:
    core, model = build_core_with_fake_model(max_model_len=6000, max_batched_tokens=64)
    history = make_tokens(300)
    counts = []
    for turn in range(10):
        before = sum(count for sequences in model.passes for count, rows in sequences if count > 1)
        job = make_job(history, f"t{turn}", max_tokens=60, ignore_eos=True)
        chunks = run_jobs(core, job)[job.id]
        computed = sum(count for sequences in model.passes for count, rows in sequences if count > 1) - before
        assert join_tokens(chunks) == generate_without_reuse(job, max_model_len=6000)
        counts.append((count_cached_tokens(chunks), len(history), computed))
        history = [*history, *join_tokens(chunks), *make_tokens(8, turn)]
    assert counts[0][0] == 0 and all(count == length - 9 for count, length, _ in counts[1:])
    assert counts[-1][0] / counts[-1][1] > 0.95
    assert all(computed < 60 for *_, computed in counts[1:]), "besides drafts, only new tokens are computed"
    assert len(core.cache_manager.prefix_cache) == 1
    assert core.stats().prompt_tokens == sum(length for _, length, _ in counts)


def test_two_continuations_of_a_history_both_reuse_it() -> None:
    core, _ = build_core_with_fake_model()
    parent = make_tokens(100)
    history = parent + generate_tokens(core, make_job(parent, max_tokens=20))
    jobs = [make_job([*history, 7 + n, 9], str(n), max_tokens=10) for n in range(2)]
    chunks = run_jobs(core, *jobs)
    for job in jobs:
        assert count_cached_tokens(chunks[job.id]) == 119
        assert join_tokens(chunks[job.id]) == generate_without_reuse(job)


def test_prefix_of_a_running_sequence_is_reused() -> None:
    core, _ = build_core_with_fake_model()
    core.add(make_job(make_tokens(100), "long", max_tokens=50))
    for _ in range(10):
        core.step()
    other = make_job([*make_tokens(90), 5, 6], "other", max_tokens=30)
    chunks = run_jobs(core, other)
    assert count_cached_tokens(chunks["other"]) == 90
    assert join_tokens(chunks["other"]) == generate_without_reuse(other)


def test_simultaneous_jobs_compute_a_common_prefix_once() -> None:
    core, model = build_core_with_fake_model(max_num_seqs=8, max_batched_tokens=64)
    jobs = [make_job([*make_tokens(300), 7, 3 + n], str(n), max_tokens=5) for n in range(8)]
    chunks = run_jobs(core, *jobs)
    assert [count_cached_tokens(chunks[job.id]) >= 300 for job in jobs] == [False] + 7 * [True]
    assert sum(count for sequences in model.passes for count, _ in sequences if count > 1) < 400
    assert all(join_tokens(chunks[job.id]) == generate_without_reuse(job) for job in jobs)


def test_follower_proceeds_when_its_leader_is_cancelled() -> None:
    core, _ = build_core_with_fake_model(max_num_seqs=8, max_batched_tokens=64)
    jobs = [make_job([*make_tokens(300), 3 + n], str(n), max_tokens=5) for n in range(3)]
    for job in jobs:
        core.add(job)
    core.step(), core.step()
    assert core.stats().running == 1
    core.cancel("0")
    chunks = run_jobs(core)
    assert count_cached_tokens(chunks["1"]) == 64 and count_cached_tokens(chunks["2"]) == 300
    assert all(join_tokens(chunks[job.id]) == generate_without_reuse(job) for job in jobs[1:])


@pytest.mark.parametrize("other", [{"owner": "b"}, {"cache_salt": "y"}, {"owner": "b", "cache_salt": "y"}])
def test_owners_and_cache_salts_share_no_entries(other: dict[str, str]) -> None:
    core, _ = build_core_with_fake_model()
    options = {"owner": "a", "cache_salt": "x"}
    generate_tokens(core, make_job(make_tokens(100), max_tokens=4, **options))
    core.add(make_job(make_tokens(100), "running", max_tokens=200, **options))
    core.step(), core.step()
    assert (
        count_cached_tokens(run_jobs(core, make_job(make_tokens(100), "theirs", max_tokens=4, **other))["theirs"]) == 0
    )
    assert (
        count_cached_tokens(run_jobs(core, make_job(make_tokens(100), "mine", max_tokens=4, **options))["mine"]) == 99
    )


@pytest.mark.parametrize(
    ("other", "num_running"),
    [({}, 1), ({"owner": "b"}, 2), ({"cache_salt": "y"}, 2), ({"owner": "b", "cache_salt": "y"}, 2)],
)
def test_sequence_waits_only_for_a_prefix_with_its_own_key(other: dict[str, str], num_running: int) -> None:
    """A wait for the prefix of another owner would show that owner's prompt in the latency."""
    core, _ = build_core_with_fake_model(max_num_seqs=8, max_batched_tokens=64)
    options = {"owner": "a", "cache_salt": "x"}
    core.add(make_job([*make_tokens(300), 3], "first", max_tokens=5, **options))
    core.add(make_job([*make_tokens(300), 4], "second", max_tokens=5, **options | other))
    core.step(), core.step()
    assert core.stats().running == num_running


def test_prompt_logprobs_are_computed_without_the_cache() -> None:
    core, _ = build_core_with_fake_model()
    for _ in range(2):
        chunks = run_jobs(core, make_job(make_tokens(100), max_tokens=4, prompt_logprobs=0))["j"]
        assert count_cached_tokens(chunks) == 0 and len(chunks[1].prompt_logprobs) == 100
    assert count_cached_tokens(run_jobs(core, make_job(make_tokens(100), max_tokens=4))["j"]) == 99


def test_prefix_of_a_cancelled_sequence_is_reused() -> None:
    core, _ = build_core_with_fake_model(max_batched_tokens=32)
    core.add(make_job(make_tokens(100), "gone", max_tokens=50))
    core.step(), core.step(), core.step()
    core.cancel("gone")
    job = make_job(make_tokens(100), max_tokens=20)
    chunks = run_jobs(core, job)["j"]
    assert count_cached_tokens(chunks) == 64 and join_tokens(chunks) == generate_without_reuse(job)


def test_failed_step_leaves_no_entries() -> None:
    core, model = build_core_with_fake_model(max_num_seqs=2)
    generate_tokens(core, make_job(make_tokens(60, 5), max_tokens=4))
    for n in range(2):
        core.add(make_job(make_tokens(100, n), str(n), max_tokens=50))
    core.step(), core.step(), core.step()
    model.fails = True
    assert {chunk.finish for _, chunk in core.step()} == {"error"}
    model.fails = False
    for n in range(2):
        job = make_job(make_tokens(100, n), max_tokens=20)
        chunks = run_jobs(core, job)["j"]
        assert count_cached_tokens(chunks) == 0 and join_tokens(chunks) == generate_without_reuse(job)
    assert count_cached_tokens(run_jobs(core, make_job(make_tokens(60, 5), max_tokens=4))["j"]) == 59, (
        "entries that the failed step did not use stay valid"
    )


def test_sequence_with_nan_logits_leaves_no_entry() -> None:
    core, model = build_core_with_fake_model()
    logits_after = model.logits_after
    model.logits_after = lambda history: logits_after(history) * float("nan")  # type: ignore[method-assign]
    assert run_jobs(core, make_job(make_tokens(50)))["j"][-1].finish == "error"
    assert not len(core.cache_manager.prefix_cache) and is_idle(core)


def test_capacity_never_exceeds_max_cache_tokens() -> None:
    core, _ = build_core_with_fake_model(max_cache_tokens=700, max_num_seqs=4, max_batched_tokens=64)
    jobs = [
        make_job(make_tokens(60 + 17 * n, n % 5), str(n), max_tokens=20 + 7 * n, ignore_eos=True) for n in range(14)
    ]
    for job in jobs:
        core.add(job)
    tokens: dict[str, list[int]] = {job.id: [] for job in jobs}
    peak = 0
    while core.has_work:
        for name, chunk in core.step():
            tokens[name] += chunk.tokens
        peak = max(peak, sum_capacities(core))
    assert 600 < peak <= 700
    assert all(tokens[job.id] == generate_without_reuse(job) for job in jobs)
    assert is_idle(core) and len(core.cache_manager.prefix_cache) > 1


def test_prefixes_of_one_owner_leave_room_for_another() -> None:
    """The prefixes fill the cache. A job of another owner drops those that were used longest ago, and no others."""
    core, _ = build_core_with_fake_model(max_cache_tokens=700)
    for n in range(8):
        generate_tokens(core, make_job(make_tokens(150, n), max_tokens=4, owner="many"))
    cache = core.cache_manager.prefix_cache
    assert 500 < cache.capacity_tokens <= 700
    job = make_job(make_tokens(150, 20), max_tokens=4, owner="one")
    assert generate_tokens(core, job) == generate_without_reuse(job)
    kept = [bool(find_match_length(cache, make_tokens(150, n), ("many", "", 0))) for n in range(8)]
    assert kept == sorted(kept) and any(kept) and sum_capacities(core) <= 700
    assert find_match_length(cache, make_tokens(150, 20), ("one", "", 0)) >= 150


def test_default_capacity_of_ended_sequences_is_one_context() -> None:
    core, _ = build_core_with_fake_model(max_model_len=300)
    for n in range(4):
        generate_tokens(core, make_job(make_tokens(120, n), max_tokens=10))
        assert sum_capacities(core) <= 300
    assert len(core.cache_manager.prefix_cache) == 2


def test_entry_is_taken_over_when_a_copy_does_not_fit() -> None:
    core, _ = build_core_with_fake_model(max_cache_tokens=400)
    generate_tokens(core, make_job(make_tokens(300), max_tokens=10, ignore_eos=True))
    job = make_job([*make_tokens(200), 5, 6], max_tokens=10)
    chunks = run_jobs(core, job)["j"]
    assert count_cached_tokens(chunks) == 200 and join_tokens(chunks) == generate_without_reuse(job)
    assert sum_capacities(core) <= 400


def test_preempted_sequence_reuses_its_remaining_entry() -> None:
    core, model = build_core_with_fake_model(
        max_cache_tokens=400, max_num_seqs=2, max_batched_tokens=64, max_draft_seqs=0
    )
    jobs = [make_job(make_tokens(150, n), str(n), max_tokens=120, ignore_eos=True) for n in range(2)]
    chunks = run_jobs(core, *jobs)
    assert [join_tokens(chunks[job.id]) for job in jobs] == [generate_without_reuse(job) for job in jobs]
    assert [count_cached_tokens(chunks[job.id]) for job in jobs] == [0, 0]
    computed = sum(count for sequences in model.passes for count, _ in sequences)
    minimum = 2 * (150 + 119)
    assert minimum < computed < minimum + 200, "one sequence was preempted, and only a part of it was recomputed"
    assert core.stats().prompt_tokens == 300 and core.stats().generated_tokens == 240


def test_failed_cache_allocation_fails_only_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    core, model = build_core_with_fake_model()
    core.add(make_job(make_tokens(50), "fine", max_tokens=5))
    core.step(), core.step()
    monkeypatch.setattr(model, "new_cache", lambda expected: 1 / 0)
    chunks = run_jobs(core, make_job(make_tokens(50, 3), "unlucky"))
    assert [chunk.finish for chunk in chunks["unlucky"]] == ["error"]
    assert chunks["fine"][-1].finish == "length" and is_idle(core)
