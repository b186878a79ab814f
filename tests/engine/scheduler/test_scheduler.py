"""The scheduler: admission order by priority and owner, displacement, preemption, and the tokens of a step."""

from collections import Counter

import pytest

from antiphon.engine.protocol import EngineError
from antiphon.engine.scheduler.prefill_budget import PrefillBudget
from antiphon.engine.scheduler.scheduler import Scheduler
from tests.engine.scheduler.scheduler_helpers import make_scheduler, make_sequence


def admit_names(scheduler: Scheduler) -> list[str]:
    names = []
    for seq in scheduler.admit_waiting(lambda *_: None):
        seq.cache, seq.admitted = object(), True
        names.append(seq.job.id)
    return names


def find_admission_order(scheduler: Scheduler) -> list[str]:
    """Returns the order of admission. Each admitted group leaves before the next one is admitted."""
    order = []
    while names := admit_names(scheduler):
        order += names
        for seq in list(scheduler.running):
            scheduler.remove(seq)
    return order


@pytest.mark.parametrize(("alignment", "expected"), [(1, [10, 10, 10]), (4, [12, 8, 8]), (16, [16]), (32, [32])])
def test_prefill_chunks_are_multiples_of_the_alignment(alignment: int, expected: list[int]) -> None:
    scheduler = Scheduler(
        max_num_seqs=9, max_waiting=9, max_cache_tokens=10_000, prefill_budget=PrefillBudget(30, alignment)
    )
    for name in "abc":
        scheduler.add(make_sequence(name, owner=name, length=37))
    admit_names(scheduler)
    assert list(plan_tokens(scheduler).values()) == expected


def test_last_prefill_chunk_may_be_unaligned() -> None:
    scheduler = Scheduler(max_num_seqs=9, max_waiting=9, max_cache_tokens=10_000, prefill_budget=PrefillBudget(30, 16))
    scheduler.add(make_sequence("a", length=37))
    admit_names(scheduler)
    counts = []
    while (seq := scheduler.running[0]).num_pending > 1:
        ((_, count),) = scheduler.schedule()
        counts.append(count)
        seq.num_computed_tokens += count
    assert counts == [16, 16, 5]


def test_budget_accumulates_until_it_covers_an_aligned_block() -> None:
    prefill_budget = PrefillBudget(7, 16)
    scheduler = Scheduler(max_num_seqs=9, max_waiting=9, max_cache_tokens=10_000, prefill_budget=prefill_budget)
    for name, length in (("a", 10), ("b", 40)):
        scheduler.add(make_sequence(name, owner=name, length=length))
    admit_names(scheduler)
    decoding, prefilling = scheduler.running
    decoding.num_computed_tokens = 9  # It decodes, which leaves six tokens for prompts in each step.
    prefill_budget.record_step(1, 0, 0.1)
    fed = []
    for _ in range(9):
        counts = plan_tokens(scheduler)
        assert counts["a"] == 1
        fed.append(counts.get("b", 0))
        prefilling.num_computed_tokens += fed[-1]
        prefill_budget.record_step(1, fed[-1], 0.1)
    assert fed == [0, 0, 16, 0, 0, 16, 0, 0, 8]


def plan_tokens(scheduler: Scheduler) -> dict[str, int]:
    return {seq.job.id: count for seq, count in scheduler.schedule()}


def test_owner_with_fewer_running_sequences_is_admitted_first() -> None:
    scheduler = make_scheduler(max_num_seqs=4)
    for name in ("a1", "a2", "b1"):
        scheduler.add(make_sequence(name, name[0]))
    assert set(admit_names(scheduler)) == {"a1", "a2", "b1"}
    (last,) = [sequence for sequence in scheduler.running if sequence.job.id == "b1"]
    scheduler.remove(last)
    scheduler.add(make_sequence("b2", "b"))
    assert admit_names(scheduler) == ["b2"], "b was admitted last, and has one running"
    for name in ("a3", "b3"):
        scheduler.add(make_sequence(name, name[0]))
    assert admit_names(scheduler) == ["b3"], "a has two running, b one"


def test_owners_take_turns_regardless_of_their_queue_lengths() -> None:
    scheduler = make_scheduler()
    for n in range(6):
        scheduler.add(make_sequence(f"flood{n}", "flood"))
    for name in ("a1", "b1", "a2"):
        scheduler.add(make_sequence(name, name[0]))
    order = find_admission_order(scheduler)
    assert order[:5] == ["flood0", "a1", "b1", "flood1", "a2"]
    assert order[5:] == [f"flood{n}" for n in range(2, 6)]


def test_owner_with_fewer_running_jobs_is_admitted_first() -> None:
    scheduler = make_scheduler(max_num_seqs=4)
    for n in range(3):
        scheduler.add(make_sequence(f"a{n}", "a"))
    assert admit_names(scheduler) == ["a0", "a1", "a2"]
    scheduler.add(make_sequence("a3", "a"))
    scheduler.add(make_sequence("b0", "b"))
    assert admit_names(scheduler) == ["b0"]


def test_priority_precedes_fairness_and_preempted_jobs_precede_new_ones() -> None:
    scheduler = make_scheduler()
    preempted = make_sequence("preempted", "a")
    preempted.admitted = True
    for seq in (make_sequence("plain", "b"), preempted, make_sequence("urgent", "a", priority=1)):
        scheduler.add(seq)
    assert find_admission_order(scheduler) == ["urgent", "preempted", "plain"]


def test_full_queue_displaces_the_newest_job_of_the_heaviest_owner() -> None:
    scheduler = make_scheduler(max_num_seqs=1, max_waiting=3)
    for n in range(4):
        assert scheduler.add(make_sequence(f"a{n}", "a")) is None
    admit_names(scheduler)
    with pytest.raises(EngineError) as caught:
        scheduler.add(make_sequence("a4", "a"))
    assert (caught.value.code, caught.value.retryable) == ("server_is_overloaded", True)
    first, second = scheduler.add(make_sequence("b0", "b")), scheduler.add(make_sequence("c0", "c"))
    assert first and second and (first.job.id, second.job.id) == ("a3", "a2")
    with pytest.raises(EngineError):
        scheduler.add(make_sequence("b1", "b"))
    with pytest.raises(EngineError):
        scheduler.add(make_sequence("a5", "a"))
    assert Counter(seq.job.owner for seq in scheduler.waiting) == {"a": 1, "b": 1, "c": 1}


def test_higher_priority_and_admitted_jobs_are_never_displaced() -> None:
    scheduler = make_scheduler(max_num_seqs=1, max_waiting=3)
    for n in range(4):
        scheduler.add(make_sequence(f"a{n}", "a", priority=1))
    with pytest.raises(EngineError):
        scheduler.add(make_sequence("b", "b"))
    for seq in scheduler.waiting:
        seq.admitted = True
    with pytest.raises(EngineError):
        scheduler.add(make_sequence("c", "c", priority=1))


def test_job_that_does_not_fit_the_cache_blocks_later_jobs() -> None:
    scheduler = make_scheduler(max_num_seqs=3, max_cache_tokens=50)
    for name, length in [("a", 30), ("big", 25), ("small", 5)]:
        scheduler.add(make_sequence(name, length=length))
    assert admit_names(scheduler) == ["a"]
    scheduler.remove(scheduler.running[0])
    assert admit_names(scheduler) == ["big", "small"]


def test_job_larger_than_the_cache_runs_alone() -> None:
    scheduler = make_scheduler(max_num_seqs=3, max_cache_tokens=20)
    for name, length in [("huge", 40), ("a", 5)]:
        scheduler.add(make_sequence(name, length=length))
    assert find_admission_order(scheduler) == ["huge", "a"]


def test_lowest_priority_then_youngest_is_preempted() -> None:
    scheduler = make_scheduler(max_num_seqs=4, max_cache_tokens=45)
    for name, priority in [("low", -1), ("old", 0), ("young", 0), ("high", 1)]:
        scheduler.add(make_sequence(name, priority=priority))
    assert len(admit_names(scheduler)) == 4
    order = []
    for seq in list(scheduler.running):
        seq.tokens.extend([5] * 5)
    while scheduler.preempt():
        order = [waiting.job.id for waiting in scheduler.waiting]
    assert order == ["low"]
    scheduler.running[0].tokens.extend([5] * 10)
    assert {seq.job.id for seq in scheduler.preempt()} == {"young"}
    assert [seq.job.id for seq in scheduler.waiting] == ["young", "low"]
    assert admit_names(scheduler) == []


def test_sequence_that_runs_alone_is_never_preempted() -> None:
    scheduler = make_scheduler(max_num_seqs=2, max_cache_tokens=30)
    scheduler.add(make_sequence("alone"))
    assert admit_names(scheduler) == ["alone"]
    scheduler.running[0].tokens.extend([5] * 50)
    assert scheduler.preempt() == [] and len(scheduler.running) == 1


def test_follower_is_skipped_until_its_leader_has_computed_the_prefix() -> None:
    scheduler = make_scheduler(max_num_seqs=3)
    leader, follower, other = make_sequence("lead"), make_sequence("follow"), make_sequence("other")
    for seq in (leader, follower, other):
        scheduler.add(seq)

    def admit() -> list[str]:
        names = []
        for seq in scheduler.admit_waiting(
            lambda seq, running: (leader, 8) if seq is follower and leader.num_computed_tokens < 8 else None
        ):
            seq.cache = object()
            names.append(seq.job.id)
        return names

    assert admit() == ["lead", "other"]
    leader.num_computed_tokens = 7
    assert admit() == []
    leader.num_computed_tokens = 8
    assert admit() == ["follow"]


def test_follower_without_its_leader_is_admitted() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    leader, follower = make_sequence("lead"), make_sequence("follow")
    scheduler.add(leader)
    admit_names(scheduler)
    follower.prefix_leader = (leader, 8)
    scheduler.add(follower)
    assert admit_names(scheduler) == []
    leader.cache = None
    assert admit_names(scheduler) == ["follow"]


def test_owners_share_the_step_budget_and_keep_their_prompt_order() -> None:
    scheduler = make_scheduler(max_num_seqs=9, max_batched_tokens=60)
    for name, owner, length in [("a1", "a", 100), ("a2", "a", 100), ("b1", "b", 10), ("c1", "c", 100)]:
        scheduler.add(make_sequence(name, owner, length))
    admit_names(scheduler)
    assert plan_tokens(scheduler) == {"a1": 25, "b1": 10, "c1": 25}


def test_short_prompts_share_a_step() -> None:
    scheduler = make_scheduler(max_num_seqs=9, max_batched_tokens=64)
    for n in range(9):
        scheduler.add(make_sequence(f"j{n}", length=20))
    admit_names(scheduler)
    assert plan_tokens(scheduler) == {"j0": 20, "j1": 20, "j2": 20, "j3": 4}


def test_higher_priority_prompt_is_prefilled_first() -> None:
    scheduler = make_scheduler(max_num_seqs=2, max_batched_tokens=30)
    scheduler.add(make_sequence("plain", "a", 40))
    scheduler.add(make_sequence("urgent", "b", 25, priority=2))
    admit_names(scheduler)
    assert plan_tokens(scheduler) == {"urgent": 25, "plain": 5}


def test_decoding_sequences_get_a_token_beyond_the_budget() -> None:
    scheduler = make_scheduler(max_num_seqs=9, max_batched_tokens=3)
    for n in range(5):
        scheduler.add(make_sequence(f"j{n}"))
    admit_names(scheduler)
    for seq in scheduler.running[:4]:
        seq.num_computed_tokens = len(seq.tokens) - 1
    assert plan_tokens(scheduler) == {f"j{n}": 1 for n in range(4)}, "decoding is measured first"


def test_one_whole_prompt_per_step_without_chunked_prefill() -> None:
    scheduler = Scheduler(max_num_seqs=3, max_waiting=9, max_cache_tokens=999, prefill_budget=None)
    for n in range(3):
        scheduler.add(make_sequence(f"j{n}", length=50))
    admit_names(scheduler)
    scheduler.running[0].num_computed_tokens = 49
    assert plan_tokens(scheduler) == {"j0": 1, "j1": 50}
