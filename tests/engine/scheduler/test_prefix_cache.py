"""What ended sequences leave in the cache: who may read it, what goes first, and that reading it changes no token."""

import gc
import weakref
from array import array
from typing import Any

import pytest

pytest.importorskip("torch")

from antiphon.engine.cache.base import KVCache
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.protocol import Chunk, Job
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.prefix_cache import MIN_PREFIX_TOKENS, PrefixCache
from antiphon.engine.scheduler.sequence import common_prefix_length
from tests.engine.fake_model import rigged
from tests.engine.tiny_models import core_for, drain, job_of, run, tokens_of

ME = ("me", "")


def ids(count: int, start: int = 0) -> list[int]:
    """Tokens in no order that could be met by chance."""
    return [3 + (start * 7 + 13 * n * n + 5 * n) % 40 for n in range(count)]


def entry(pool: PrefixCache, tokens: list[int], key: tuple[str, str] = ME, capacity: int = 0) -> KVCache:
    kv = ContiguousKVCache(capacity or len(tokens))
    kv.commit(len(tokens))
    pool.insert(key, array("i", tokens), kv)
    return kv


def found(pool: PrefixCache, tokens: list[int], key: tuple[str, str] = ME) -> int:
    return pool.longest_match(key, array("i", tokens), len(tokens))[1]


def idle(core: Core) -> bool:
    stats = core.stats()
    return not core.has_work and stats.running == stats.waiting == stats.running_cache_tokens == 0


def cached(chunks: list[Chunk]) -> int:
    assert not any(chunk.cached_tokens for chunk in chunks[1:])
    return chunks[0].cached_tokens


def alone(job: Job, **options: Any) -> list[int]:
    """What the job says where nothing is reused."""
    return run(rigged(enable_prefix_caching=False, max_draft_seqs=0, **options)[0], job)


def held(core: Core) -> int:
    return core._cache_manager.prefix_cache.capacity_tokens + sum(one.cache.capacity for one in core._scheduler.running)


@pytest.mark.parametrize("turns", [2, 4])
def test_a_text_that_comes_back_with_a_little_more_is_not_copied(turns: int) -> None:
    core, _ = rigged(context=4000)
    text, places = ids(1500), set()
    for turn in range(turns):
        said = drain(core, job_of(text, str(turn), max_tokens=20))[str(turn)]
        assert cached(said) == (0 if not turn else len(text) - 31)
        (kept,) = core._cache_manager.prefix_cache._entries
        places.add(kept.cache._layers[0].addresses)  # type: ignore[attr-defined]
        text = [*text, *tokens_of(said), *ids(30, turn)]
    assert len(places) == 1 and kept.cache.capacity < 1.2 * len(text)


# The pool.


@pytest.mark.parametrize("place", [0, 1, 7, 299, 300])
def test_the_shared_beginning_is_counted_to_the_first_difference(place: int) -> None:
    one, two = array("i", range(300)), array("i", range(300))
    if place < 300:
        two[place] = -1
    assert common_prefix_length(one, two, 300) == place
    assert common_prefix_length(one, two, 5) == min(place, 5)
    assert common_prefix_length(one, two[:20], 300) == min(place, 20)
    assert (
        common_prefix_length(array("i"), two, 9)
        == common_prefix_length(one, two, 0)
        == common_prefix_length(one, two, -1)
        == 0
    )


def test_the_longest_beginning_is_found_and_among_equals_the_shortest_entry() -> None:
    pool = PrefixCache()
    common = ids(30)
    entry(pool, [*common, 50, *ids(90)])
    short = entry(pool, [*common, 51, *ids(20)])
    entry(pool, [*common[:20], 52])
    best, length = pool.longest_match(ME, array("i", [*common, 60, 61]), 31)
    assert best is not None and best.cache is short and length == 30
    assert found(pool, [*common[:20], 52, 53]) == 21
    assert found(pool, ids(30)[: MIN_PREFIX_TOKENS - 1]) == 0
    assert found(pool, [1, *common]) == 0


def test_nothing_is_shared_between_keys() -> None:
    pool = PrefixCache()
    entry(pool, ids(40), ("a", "x"))
    assert [found(pool, ids(40), key) for key in [("a", "x"), ("a", ""), ("", "x"), ("b", "x")]] == [40, 0, 0, 0]


def test_an_entry_that_begins_another_one_is_dropped() -> None:
    pool = PrefixCache()
    entry(pool, ids(40))
    entry(pool, ids(60))
    entry(pool, ids(50))
    entry(pool, ids(30), ("other", ""))
    assert (len(pool), pool.num_tokens) == (2, 90)


def test_too_short_a_sequence_is_not_kept() -> None:
    pool = PrefixCache()
    entry(pool, ids(MIN_PREFIX_TOKENS - 1))
    assert not len(pool)


def test_what_holds_much_more_memory_than_it_needs_gives_it_back() -> None:
    pool = PrefixCache()
    entry(pool, ids(100), capacity=150)
    entry(pool, ids(100, 1), capacity=400)
    assert pool.capacity_tokens == 150 + 112


def test_the_least_recently_used_goes_first() -> None:
    pool = PrefixCache()
    for n in range(4):
        entry(pool, ids(100, n))
    best, _ = pool.longest_match(ME, array("i", ids(100, 0)), 99)
    assert best is not None
    pool.mark_used(best)
    pool.evict_to(300)
    assert [bool(found(pool, ids(100, n))) for n in range(4)] == [True, False, True, True]
    pool.evict_to(150, spared=best)
    assert [bool(found(pool, ids(100, n))) for n in range(4)] == [True, False, False, False]


def test_the_last_entry_is_cut_before_it_is_dropped() -> None:
    pool = PrefixCache()
    entry(pool, ids(400))
    pool.evict_to(300)
    kept = found(pool, ids(400))
    assert 200 < kept < 300 and pool.capacity_tokens <= 300 and pool.num_tokens == kept
    pool.evict_to(50)
    assert not len(pool) and pool.capacity_tokens == 0


def test_memory_that_is_let_go_is_free() -> None:
    pool = PrefixCache()
    gone = weakref.ref(entry(pool, ids(100)))
    entry(pool, ids(90, 1))
    pool.evict_to(95)
    gc.collect()
    assert gone() is None


# On a core.


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "mistral"])
def test_reading_the_cache_changes_no_token(family: str) -> None:
    """Sliding windows, sinks and grouped heads included: taken over, copied, and cut where histories part."""
    core, plain = (
        core_for(family, max_batched_tokens=16, max_num_seqs=3),
        core_for(family, max_batched_tokens=16, max_num_seqs=3),
    )
    plain._cache_manager._enable_prefix_caching = False
    first = ids(60)
    history = [*first, *run(core, job_of(first, max_tokens=20, ignore_eos=True)), *ids(9)]
    asked = [history, [*history[:50], *ids(30, 4)], first, [*history[:70], *ids(20, 2)]]
    read = []
    for prompt in asked:
        job = job_of(prompt, max_tokens=12, ignore_eos=True)
        chunks = drain(core, job)["j"]
        assert tokens_of(chunks) == run(plain, job)
        read.append(cached(chunks))
    assert read == [79, 50, 59, 70]
    together = [job_of(prompt, str(n), max_tokens=12, ignore_eos=True) for n, prompt in enumerate(asked)]
    both = drain(core, *together), drain(plain, *together)
    assert [tokens_of(both[0][str(n)]) for n in range(4)] == [tokens_of(both[1][str(n)]) for n in range(4)]
    assert idle(core) and not len(plain._cache_manager.prefix_cache)


def test_a_history_that_is_resent_is_read_from_the_cache() -> None:
    core, forward = rigged(context=6000, max_batched_tokens=64)
    history = ids(300)
    read = []
    for turn in range(10):
        before = sum(count for feeds in forward.feeds for count, rows in feeds if count > 1)
        job = job_of(history, f"t{turn}", max_tokens=60, ignore_eos=True)
        chunks = drain(core, job)[job.id]
        fed = sum(count for feeds in forward.feeds for count, rows in feeds if count > 1) - before
        assert tokens_of(chunks) == alone(job, context=6000)
        read.append((cached(chunks), len(history), fed))
        history = [*history, *tokens_of(chunks), *ids(8, turn)]
    assert read[0][0] == 0 and all(count == length - 9 for count, length, _ in read[1:])
    assert read[-1][0] / read[-1][1] > 0.95
    assert all(fed < 60 for *_, fed in read[1:]), "but for drafts, only what is new is computed"
    assert len(core._cache_manager.prefix_cache) == 1
    assert core.stats().prompt_tokens == sum(length for _, length, _ in read)


def test_two_children_of_one_parent_both_read_it() -> None:
    core, _ = rigged()
    parent = ids(100)
    history = parent + run(core, job_of(parent, max_tokens=20))
    jobs = [job_of([*history, 7 + n, 9], str(n), max_tokens=10) for n in range(2)]
    chunks = drain(core, *jobs)
    for job in jobs:
        assert cached(chunks[job.id]) == 119
        assert tokens_of(chunks[job.id]) == alone(job)


def test_a_running_sequence_can_be_read() -> None:
    core, _ = rigged()
    core.add(job_of(ids(100), "long", max_tokens=50))
    for _ in range(10):
        core.step()
    other = job_of([*ids(90), 5, 6], "other", max_tokens=30)
    chunks = drain(core, other)
    assert cached(chunks["other"]) == 90
    assert tokens_of(chunks["other"]) == alone(other)


def test_requests_that_begin_alike_and_come_together_compute_it_once() -> None:
    core, forward = rigged(max_num_seqs=8, max_batched_tokens=64)
    jobs = [job_of([*ids(300), 7, 3 + n], str(n), max_tokens=5) for n in range(8)]
    chunks = drain(core, *jobs)
    assert [cached(chunks[job.id]) >= 300 for job in jobs] == [False] + 7 * [True]
    assert sum(count for feeds in forward.feeds for count, _ in feeds if count > 1) < 400
    assert all(tokens_of(chunks[job.id]) == alone(job) for job in jobs)


def test_who_waits_for_a_beginning_goes_on_when_its_leader_is_cancelled() -> None:
    core, _ = rigged(max_num_seqs=8, max_batched_tokens=64)
    jobs = [job_of([*ids(300), 3 + n], str(n), max_tokens=5) for n in range(3)]
    for job in jobs:
        core.add(job)
    core.step(), core.step()
    assert core.stats().running == 1
    core.cancel("0")
    chunks = drain(core)
    assert cached(chunks["1"]) == 64 and cached(chunks["2"]) == 300
    assert all(tokens_of(chunks[job.id]) == alone(job) for job in jobs[1:])


@pytest.mark.parametrize("other", [{"owner": "b"}, {"cache_salt": "y"}, {"owner": "b", "cache_salt": "y"}])
def test_owners_and_salts_share_nothing(other: dict[str, str]) -> None:
    core, _ = rigged()
    mine = {"owner": "a", "cache_salt": "x"}
    run(core, job_of(ids(100), max_tokens=4, **mine))
    core.add(job_of(ids(100), "running", max_tokens=200, **mine))
    core.step(), core.step()
    assert cached(drain(core, job_of(ids(100), "theirs", max_tokens=4, **other))["theirs"]) == 0
    assert cached(drain(core, job_of(ids(100), "mine", max_tokens=4, **mine))["mine"]) == 99


def test_prompt_log_probabilities_are_computed_and_then_may_be_read() -> None:
    core, _ = rigged()
    for _ in range(2):
        chunks = drain(core, job_of(ids(100), max_tokens=4, prompt_logprobs=0))["j"]
        assert cached(chunks) == 0 and len(chunks[1].prompt_logprobs) == 100
    assert cached(drain(core, job_of(ids(100), max_tokens=4))["j"]) == 99


def test_what_a_cancelled_sequence_computed_can_be_read() -> None:
    core, _ = rigged(max_batched_tokens=32)
    core.add(job_of(ids(100), "gone", max_tokens=50))
    core.step(), core.step(), core.step()
    core.cancel("gone")
    job = job_of(ids(100), max_tokens=20)
    chunks = drain(core, job)["j"]
    assert cached(chunks) == 64 and tokens_of(chunks) == alone(job)


def test_a_step_that_fails_leaves_nothing_to_read() -> None:
    core, forward = rigged(max_num_seqs=2)
    run(core, job_of(ids(60, 5), max_tokens=4))
    for n in range(2):
        core.add(job_of(ids(100, n), str(n), max_tokens=50))
    core.step(), core.step(), core.step()
    forward.broken = True
    assert {chunk.finish for _, chunk in core.step()} == {"error"}
    forward.broken = False
    for n in range(2):
        job = job_of(ids(100, n), max_tokens=20)
        chunks = drain(core, job)["j"]
        assert cached(chunks) == 0 and tokens_of(chunks) == alone(job)
    assert cached(drain(core, job_of(ids(60, 5), max_tokens=4))["j"]) == 59, "what was idle then is sound"


def test_a_sequence_without_a_usable_number_leaves_nothing_to_read() -> None:
    core, forward = rigged()
    row = forward._row
    forward._row = lambda history: row(history) * float("nan")  # type: ignore[method-assign]
    assert drain(core, job_of(ids(50)))["j"][-1].finish == "error"
    assert not len(core._cache_manager.prefix_cache) and idle(core)


def test_all_caches_together_never_exceed_the_room() -> None:
    core, _ = rigged(max_cache_tokens=700, max_num_seqs=4, max_batched_tokens=64)
    jobs = [job_of(ids(60 + 17 * n, n % 5), str(n), max_tokens=20 + 7 * n, ignore_eos=True) for n in range(14)]
    for job in jobs:
        core.add(job)
    said: dict[str, list[int]] = {job.id: [] for job in jobs}
    fullest = 0
    while core.has_work:
        for name, chunk in core.step():
            said[name] += chunk.tokens
        fullest = max(fullest, held(core))
    assert 600 < fullest <= 700
    assert all(said[job.id] == alone(job) for job in jobs)
    assert idle(core) and len(core._cache_manager.prefix_cache) > 1


def test_without_a_bound_ended_sequences_hold_one_context() -> None:
    core, _ = rigged(context=300)
    for n in range(4):
        run(core, job_of(ids(120, n), max_tokens=10))
        assert held(core) <= 300
    assert len(core._cache_manager.prefix_cache) == 2


def test_where_a_copy_does_not_fit_the_entry_is_taken_over() -> None:
    core, _ = rigged(max_cache_tokens=400)
    run(core, job_of(ids(300), max_tokens=10, ignore_eos=True))
    job = job_of([*ids(200), 5, 6], max_tokens=10)
    chunks = drain(core, job)["j"]
    assert cached(chunks) == 200 and tokens_of(chunks) == alone(job)
    assert held(core) <= 400


def test_a_sequence_that_gave_way_finds_what_is_left_of_its_own() -> None:
    core, forward = rigged(max_cache_tokens=400, max_num_seqs=2, max_batched_tokens=64, max_draft_seqs=0)
    jobs = [job_of(ids(150, n), str(n), max_tokens=120, ignore_eos=True) for n in range(2)]
    chunks = drain(core, *jobs)
    assert [tokens_of(chunks[job.id]) for job in jobs] == [alone(job) for job in jobs]
    assert [cached(chunks[job.id]) for job in jobs] == [0, 0]
    fed = sum(count for feeds in forward.feeds for count, _ in feeds)
    most = 2 * (150 + 119)
    assert most < fed < most + 200, "one gave way, and not all of it was computed again"
    assert core.stats().prompt_tokens == 300 and core.stats().generated_tokens == 240


def test_a_cache_that_cannot_be_had_fails_only_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    core, forward = rigged()
    core.add(job_of(ids(50), "fine", max_tokens=5))
    core.step(), core.step()
    monkeypatch.setattr(forward, "new_cache", lambda expected: 1 / 0)
    chunks = drain(core, job_of(ids(50, 3), "unlucky"))
    assert [chunk.finish for chunk in chunks["unlucky"]] == ["error"]
    assert chunks["fine"][-1].finish == "length" and idle(core)
