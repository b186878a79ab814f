"""Who runs next: priorities, owners, places, and a step's tokens."""

from collections import Counter
from typing import Any

import pytest

from antiphon.engine.protocol import EngineError, Job
from antiphon.engine.scheduler.prefill_budget import PrefillBudget
from antiphon.engine.scheduler.scheduler import Scheduler
from antiphon.engine.scheduler.sequence import Sequence


def sequence(name: str, owner: str = "", length: int = 10, priority: int = 0) -> Sequence:
    job = Job(id=name, tokens=(5,) * length, owner=owner, priority=priority)
    sampling_state: Any = None  # the scheduler does not read it, and it would need torch
    return Sequence(
        job,
        sampling_state,
        max_new_tokens=9,
        stop_ids=frozenset(),
        deadline_at=None,
    )


def scheduler(
    max_num_seqs: int = 1, max_waiting: int = 99, max_cache_tokens: int = 10_000, max_batched_tokens: int = 64
) -> Scheduler:
    return Scheduler(
        max_num_seqs=max_num_seqs,
        max_waiting=max_waiting,
        max_cache_tokens=max_cache_tokens,
        prefill_budget=PrefillBudget(max_batched_tokens),
    )


def admitted(schedule: Scheduler) -> list[str]:
    names = []
    for one in schedule.admit_waiting(lambda *_: None):
        one.cache, one.admitted = object(), True
        names.append(one.job.id)
    return names


def served(schedule: Scheduler) -> list[str]:
    """The order in which all that wait get the slots, each group leaving before the next comes."""
    order = []
    while names := admitted(schedule):
        order += names
        for one in list(schedule.running):
            schedule.remove(one)
    return order


@pytest.mark.parametrize(("grain", "shares"), [(1, [10, 10, 10]), (4, [12, 8, 8]), (16, [16]), (32, [32])])
def test_prompts_are_cut_at_multiples_of_the_grain(grain: int, shares: list[int]) -> None:
    schedule = Scheduler(
        max_num_seqs=9, max_waiting=9, max_cache_tokens=10_000, prefill_budget=PrefillBudget(30, grain)
    )
    for name in "abc":
        schedule.add(sequence(name, owner=name, length=37))
    admitted(schedule)
    assert list(planned(schedule).values()) == shares


def test_the_end_of_a_prompt_need_not_be_a_multiple() -> None:
    schedule = Scheduler(max_num_seqs=9, max_waiting=9, max_cache_tokens=10_000, prefill_budget=PrefillBudget(30, 16))
    schedule.add(sequence("a", length=37))
    admitted(schedule)
    seen = []
    while (one := schedule.running[0]).num_pending > 1:
        ((_, count),) = schedule.schedule()
        seen.append(count)
        one.num_computed_tokens += count
    assert seen == [16, 16, 5]


def test_a_block_that_is_more_than_a_step_may_carry_is_saved_up_for() -> None:
    pace = PrefillBudget(7, 16)
    schedule = Scheduler(max_num_seqs=9, max_waiting=9, max_cache_tokens=10_000, prefill_budget=pace)
    for name, length in (("a", 10), ("b", 40)):
        schedule.add(sequence(name, owner=name, length=length))
    admitted(schedule)
    one, two = schedule.running
    one.num_computed_tokens = 9  # it decodes, which leaves room for six tokens in each step
    pace.record_step(1, 0, 0.1)
    seen = []
    for _ in range(9):
        counts = planned(schedule)
        assert counts["a"] == 1
        seen.append(counts.get("b", 0))
        two.num_computed_tokens += seen[-1]
        pace.record_step(1, seen[-1], 0.1)
    assert seen == [0, 0, 16, 0, 0, 16, 0, 0, 8]


def planned(schedule: Scheduler) -> dict[str, int]:
    return {one.job.id: count for one, count in schedule.schedule()}


def test_owners_take_turns_however_many_one_of_them_sends() -> None:
    schedule = scheduler()
    for n in range(6):
        schedule.add(sequence(f"flood{n}", "flood"))
    for name in ("a1", "b1", "a2"):
        schedule.add(sequence(name, name[0]))
    order = served(schedule)
    assert order[:5] == ["flood0", "a1", "b1", "flood1", "a2"]
    assert order[5:] == [f"flood{n}" for n in range(2, 6)]


def test_the_owner_with_fewer_running_jobs_goes_first() -> None:
    schedule = scheduler(max_num_seqs=4)
    for n in range(3):
        schedule.add(sequence(f"a{n}", "a"))
    assert admitted(schedule) == ["a0", "a1", "a2"]
    schedule.add(sequence("a3", "a"))
    schedule.add(sequence("b0", "b"))
    assert admitted(schedule) == ["b0"]


def test_priority_comes_before_fairness_and_who_ran_already_before_who_did_not() -> None:
    schedule = scheduler()
    again = sequence("again", "a")
    again.admitted = True
    for one in (sequence("plain", "b"), again, sequence("urgent", "a", priority=1)):
        schedule.add(one)
    assert served(schedule) == ["urgent", "again", "plain"]


def test_when_all_places_are_taken_an_owner_with_fewer_displaces_the_last_of_the_most() -> None:
    schedule = scheduler(max_num_seqs=1, max_waiting=3)
    for n in range(4):
        assert schedule.add(sequence(f"a{n}", "a")) is None
    admitted(schedule)
    with pytest.raises(EngineError) as caught:
        schedule.add(sequence("a4", "a"))
    assert (caught.value.code, caught.value.retryable) == ("server_is_overloaded", True)
    first, second = schedule.add(sequence("b0", "b")), schedule.add(sequence("c0", "c"))
    assert first and second and (first.job.id, second.job.id) == ("a3", "a2")
    with pytest.raises(EngineError):
        schedule.add(sequence("b1", "b"))
    with pytest.raises(EngineError):
        schedule.add(sequence("a5", "a"))
    assert Counter(one.job.owner for one in schedule.waiting) == {"a": 1, "b": 1, "c": 1}


def test_nobody_is_displaced_by_a_lower_priority_or_once_it_was_admitted() -> None:
    schedule = scheduler(max_num_seqs=1, max_waiting=3)
    for n in range(4):
        schedule.add(sequence(f"a{n}", "a", priority=1))
    with pytest.raises(EngineError):
        schedule.add(sequence("b", "b"))
    for one in schedule.waiting:
        one.admitted = True
    with pytest.raises(EngineError):
        schedule.add(sequence("c", "c", priority=1))


def test_what_does_not_fit_into_the_cache_waits_and_nobody_passes_it() -> None:
    schedule = scheduler(max_num_seqs=3, max_cache_tokens=50)
    for name, length in [("a", 30), ("big", 25), ("small", 5)]:
        schedule.add(sequence(name, length=length))
    assert admitted(schedule) == ["a"]
    schedule.remove(schedule.running[0])
    assert admitted(schedule) == ["big", "small"]


def test_one_that_is_larger_than_the_cache_runs_alone() -> None:
    schedule = scheduler(max_num_seqs=3, max_cache_tokens=20)
    for name, length in [("huge", 40), ("a", 5)]:
        schedule.add(sequence(name, length=length))
    assert served(schedule) == ["huge", "a"]


def test_the_lowest_priority_gives_way_then_the_youngest() -> None:
    schedule = scheduler(max_num_seqs=4, max_cache_tokens=45)
    for name, priority in [("low", -1), ("old", 0), ("young", 0), ("high", 1)]:
        schedule.add(sequence(name, priority=priority))
    assert len(admitted(schedule)) == 4
    order = []
    for one in list(schedule.running):
        one.tokens.extend([5] * 5)
    while schedule.preempt():
        order = [other.job.id for other in schedule.waiting]
    assert order == ["low"]
    schedule.running[0].tokens.extend([5] * 10)
    assert {one.job.id for one in schedule.preempt()} == {"young"}
    assert [one.job.id for one in schedule.waiting] == ["young", "low"]
    assert admitted(schedule) == []


def test_who_follows_a_leader_is_passed_until_the_leader_has_fed_enough() -> None:
    schedule = scheduler(max_num_seqs=3)
    lead, follow, other = sequence("lead"), sequence("follow"), sequence("other")
    for one in (lead, follow, other):
        schedule.add(one)

    def names() -> list[str]:
        found = []
        for one in schedule.admit_waiting(
            lambda one, running: (lead, 8) if one is follow and lead.num_computed_tokens < 8 else None
        ):
            one.cache = object()
            found.append(one.job.id)
        return found

    assert names() == ["lead", "other"]
    lead.num_computed_tokens = 7
    assert names() == []
    lead.num_computed_tokens = 8
    assert names() == ["follow"]


def test_who_follows_a_leader_that_is_gone_goes_on_alone() -> None:
    schedule = scheduler(max_num_seqs=2)
    lead, follow = sequence("lead"), sequence("follow")
    schedule.add(lead)
    admitted(schedule)
    follow.prefix_leader = (lead, 8)
    schedule.add(follow)
    assert admitted(schedule) == []
    lead.cache = None
    assert admitted(schedule) == ["follow"]


def test_owners_share_a_steps_tokens_and_one_owners_prompts_come_in_order() -> None:
    schedule = scheduler(max_num_seqs=9, max_batched_tokens=60)
    for name, owner, length in [("a1", "a", 100), ("a2", "a", 100), ("b1", "b", 10), ("c1", "c", 100)]:
        schedule.add(sequence(name, owner, length))
    admitted(schedule)
    assert planned(schedule) == {"a1": 25, "b1": 10, "c1": 25}


def test_several_short_prompts_share_one_step_and_what_is_left_goes_to_the_next() -> None:
    schedule = scheduler(max_num_seqs=9, max_batched_tokens=64)
    for n in range(9):
        schedule.add(sequence(f"j{n}", length=20))
    admitted(schedule)
    assert planned(schedule) == {"j0": 20, "j1": 20, "j2": 20, "j3": 4}


def test_a_higher_priority_prompt_is_fed_before_others() -> None:
    schedule = scheduler(max_num_seqs=2, max_batched_tokens=30)
    schedule.add(sequence("plain", "a", 40))
    schedule.add(sequence("urgent", "b", 25, priority=2))
    admitted(schedule)
    assert planned(schedule) == {"urgent": 25, "plain": 5}


def test_whoever_generates_gets_a_token_in_every_step_even_where_the_budget_is_less() -> None:
    schedule = scheduler(max_num_seqs=9, max_batched_tokens=3)
    for n in range(5):
        schedule.add(sequence(f"j{n}"))
    admitted(schedule)
    for one in schedule.running[:4]:
        one.num_computed_tokens = len(one.tokens) - 1
    assert planned(schedule) == {f"j{n}": 1 for n in range(4)}, "first, decoding is measured"


def test_without_chunks_one_whole_prompt_a_step() -> None:
    schedule = Scheduler(max_num_seqs=3, max_waiting=9, max_cache_tokens=999, prefill_budget=None)
    for n in range(3):
        schedule.add(sequence(f"j{n}", length=50))
    admitted(schedule)
    schedule.running[0].num_computed_tokens = 49
    assert planned(schedule) == {"j0": 1, "j1": 50}
