"""The prefill budget: the number of prompt tokens that a step may carry."""

import pytest

from antiphon.engine.scheduler.prefill_budget import (
    DECODE_WINDOW_STEPS,
    MAX_STEP_SLOWDOWN,
    MIN_PREFILL_TOKENS,
    PREFILL_WEIGHT,
    REMEASURE_PREFILL_AFTER_STEPS,
    PrefillBudget,
)


def record_decode_steps(budget: PrefillBudget, decoding: int, seconds: float, times: int = 5) -> None:
    for _ in range(times):
        budget.record_step(decoding, 0, seconds)


def record_mixed_steps(
    budget: PrefillBudget, decoding: int, waiting: int, base: float, cost: float, steps: int = 40
) -> list[float]:
    """Runs steps that take `base` and `cost` per prompt token. Returns the times of the steps with prompt tokens."""
    mixed = []
    for _ in range(steps):
        count = budget.next_budget(decoding, waiting)
        seconds = base + cost * count
        budget.record_step(decoding, count, seconds)
        if count:
            mixed.append(seconds)
    return mixed


def test_budget_without_decoding_is_the_whole_chunk() -> None:
    assert PrefillBudget(512).next_budget(0, 1) == 512
    assert PrefillBudget(1).next_budget(0, 3) == 1


def test_decoding_is_measured_before_prompt_tokens_are_added() -> None:
    budget = PrefillBudget(512)
    assert budget.next_budget(8, 1) == 0
    record_decode_steps(budget, 8, 0.1, times=1)
    assert budget.next_budget(8, 1) == MIN_PREFILL_TOKENS
    assert budget.next_budget(2, 1) == 0, "a measurement of eight sequences does not apply to two"


def test_mixed_steps_stay_within_the_allowed_slowdown() -> None:
    for base, cost in [(0.06, 0.0024), (0.131, 0.005), (0.0035, 0.0001), (0.15, 0.001)]:
        budget = PrefillBudget(512)
        record_decode_steps(budget, 8, base)
        mixed = record_mixed_steps(budget, 8, 1, base, cost)
        assert max(mixed) <= MAX_STEP_SLOWDOWN * base * 1.001
        assert mixed[-1] >= (1 + (MAX_STEP_SLOWDOWN - 1) * 0.8) * base or mixed[-1] == base + 512 * cost


def test_budget_stays_within_its_bounds() -> None:
    slow_budget = PrefillBudget(512)
    record_decode_steps(slow_budget, 8, 0.01)
    record_mixed_steps(slow_budget, 8, 1, 0.01, 0.01)
    assert slow_budget.next_budget(8, 1) == MIN_PREFILL_TOKENS
    free_budget = PrefillBudget(100)
    record_decode_steps(free_budget, 8, 0.01)
    record_mixed_steps(free_budget, 8, 1, 0.01, 0.0, steps=20)
    assert free_budget.next_budget(8, 1) == 100 - 8
    small_budget = PrefillBudget(4)
    record_decode_steps(small_budget, 8, 0.01)
    assert small_budget.next_budget(8, 1) == 1


def test_budget_doubles_when_growing_and_shrinks_at_once() -> None:
    budget = PrefillBudget(512)
    record_decode_steps(budget, 8, 0.1)
    counts = []
    for _ in range(5):
        counts.append(budget.next_budget(8, 1))
        budget.record_step(8, counts[-1], 0.1)
    assert counts == [MIN_PREFILL_TOKENS * 2**n for n in range(5)]
    for _ in range(8):
        budget.record_step(8, 128, 0.1 + 128 * 0.03)
    assert budget.next_budget(8, 1) == MIN_PREFILL_TOKENS


def test_first_budget_follows_the_cost_of_a_lone_prompt() -> None:
    budget = PrefillBudget(512)
    record_decode_steps(budget, 8, 0.1)
    budget.record_step(0, 512, 512 * 0.005)
    assert budget.next_budget(8, 1) == int((MAX_STEP_SLOWDOWN - 1) * 0.1 / 0.005)


def test_cost_of_a_lone_prompt_predicts_that_of_mixed_steps() -> None:
    budget = PrefillBudget(512)
    budget.record_step(0, 130, 130 * 0.001)
    record_decode_steps(budget, 1, 0.04, times=1)
    assert budget.next_budget(1, 3) == pytest.approx(3 * PREFILL_WEIGHT * 40, abs=1)


def test_short_last_chunk_does_not_reset_the_budget() -> None:
    budget = PrefillBudget(512)
    record_decode_steps(budget, 4, 0.1)
    record_mixed_steps(budget, 4, 4, 0.1, 0.001, steps=20)
    usual = budget.next_budget(4, 4)
    budget.record_step(4, 3, 0.1 + 3 * 0.001)
    assert budget.next_budget(4, 4) == pytest.approx(usual, abs=1) and usual > 100


def test_waiting_prompts_weigh_more_than_decoding_sequences() -> None:
    budget = PrefillBudget(512)
    record_decode_steps(budget, 4, 0.1)
    record_mixed_steps(budget, 4, 4, 0.1, 0.001, steps=20)
    budget_of_1, budget_of_4 = (
        pytest.approx((MAX_STEP_SLOWDOWN - 1) * 100, abs=1),
        pytest.approx(PREFILL_WEIGHT * 100, abs=3),
    )
    assert [budget.next_budget(4, waiting) for waiting in (1, 4)] == [budget_of_1, budget_of_4]
    assert budget.next_budget(4, 8) == pytest.approx(PREFILL_WEIGHT * 200, abs=5)


def test_decoding_is_remeasured_periodically() -> None:
    budget = PrefillBudget(512)
    record_decode_steps(budget, 8, 0.1)
    budgets = []
    for _ in range(2 * REMEASURE_PREFILL_AFTER_STEPS + 4):
        budgets.append(budget.next_budget(8, 1))
        budget.record_step(8, budgets[-1], 0.1 + 0.005 * budgets[-1])
    assert [step for step, count in enumerate(budgets) if count == 0] == [
        *(REMEASURE_PREFILL_AFTER_STEPS, REMEASURE_PREFILL_AFTER_STEPS + 1),
        *(2 * REMEASURE_PREFILL_AFTER_STEPS + 2, 2 * REMEASURE_PREFILL_AFTER_STEPS + 3),
    ]


def test_step_after_a_prompt_is_not_a_decode_measurement() -> None:
    budget = PrefillBudget(512)
    record_decode_steps(budget, 8, 0.1)
    for _ in range(20):
        budget.record_step(8, 10, 0.15)
        budget.record_step(8, 0, 0.13)
    assert budget.decode_seconds(8) == 0.1
    record_decode_steps(budget, 8, 0.12, times=DECODE_WINDOW_STEPS)
    assert budget.decode_seconds(8) == 0.12


def test_decode_time_ignores_a_minority_of_slow_steps() -> None:
    budget = PrefillBudget(512)
    record_decode_steps(budget, 8, 0.1, times=8)
    record_decode_steps(budget, 8, 0.25, times=7)
    assert budget.decode_seconds(8) == 0.1
    record_decode_steps(budget, 8, 0.25)
    assert budget.decode_seconds(8) == 0.25


def test_mixed_step_faster_than_decoding_discards_the_measurement() -> None:
    budget = PrefillBudget(512)
    record_decode_steps(budget, 8, 0.3)  # slowed by other work on the machine
    budget.record_step(8, 30, 0.15)
    assert budget.next_budget(8, 1) == 0 and budget.decode_seconds(8) is None
    record_decode_steps(budget, 8, 0.1)
    record_mixed_steps(budget, 8, 1, 0.1, 0.002)
    assert budget.next_budget(8, 1) == pytest.approx((MAX_STEP_SLOWDOWN - 1) * 50, abs=1)


@pytest.mark.parametrize(("base", "past", "cost"), [(0.04, 0.03, 0.0006), (0.04, 0.06, 0.001), (0.2, 0.1, 0.01)])
def test_expensive_prompts_run_in_fewer_but_larger_chunks(base: float, past: float, cost: float) -> None:
    """`past` is the time to read a long prompt's KV cache, which does not depend on the step's number of tokens."""
    budget = PrefillBudget(512)
    record_decode_steps(budget, 8, base)
    steps = []
    for _ in range(200):
        count = budget.next_budget(8, 1)
        seconds = base + (past + cost * count if count else 0)
        budget.record_step(8, count, seconds)
        steps.append((count, seconds))
    later_steps = steps[40:]
    mixed = [count for count, _ in later_steps if count]
    assert 0.2 * len(later_steps) < len(mixed) < 0.5 * len(later_steps)
    assert sum(mixed) / sum(seconds for _, seconds in later_steps) >= 0.9 * MIN_PREFILL_TOKENS / (
        base + past + cost * MIN_PREFILL_TOKENS
    )
    assert max(seconds for _, seconds in later_steps) < 4 * base
    for _ in range(100):  # a short prompt arrives
        count = budget.next_budget(8, 1)
        budget.record_step(8, count, base + base / 100 * count)
    assert budget.next_budget(8, 1) == pytest.approx((MAX_STEP_SLOWDOWN - 1) * 100, abs=2)


@pytest.mark.parametrize(("count", "length", "seconds"), [(128, 128, 3.0), (16, 437, 1.8), (8, 2000, 3.2)])
def test_blocks_grow_where_a_step_with_prompts_costs_the_same_for_any_number_of_tokens(
    count: int, length: int, seconds: float
) -> None:
    """Costs as measured on an H200 with a model of 0.6 B: prompts in chunks of 8 tokens took 15 s, most of them waiting.

    A step that only decodes is replayed from a CUDA graph; one with prompts is not, and takes 26 ms more.
    """
    budget = PrefillBudget(512)
    missing, outputs = [length] * count, [0] * count
    clock, worst_mixed = 0.0, 0.0
    while any(missing):
        decoding = [index for index in range(count) if not missing[index] and outputs[index] < 100]
        waiting = [index for index in range(count) if missing[index]]
        left = prompts = budget.next_budget(len(decoding), len(waiting))
        for index in waiting:
            taken = min(left, missing[index])
            missing[index] -= taken
            left -= taken
        duration = 0.0026 + 0.00006 * len(decoding) + (0.026 + 1e-5 * prompts if prompts else 0)
        budget.record_step(len(decoding), prompts - left, duration)
        clock += duration
        for index in decoding:
            outputs[index] += 1
        worst_mixed = max(worst_mixed, duration if decoding else 0)
    assert clock < seconds and worst_mixed < 0.05


def test_one_slow_step_does_not_change_the_budget() -> None:
    budget = PrefillBudget(512)
    record_decode_steps(budget, 8, 0.1)
    record_mixed_steps(budget, 8, 1, 0.1, 0.002)
    usual = budget.next_budget(8, 1)
    budget.record_step(8, usual, 9.0)
    budget.record_step(8, 0, 9.0)
    assert budget.next_budget(8, 1) == usual


def test_zero_step_times_give_the_largest_budget() -> None:
    budget = PrefillBudget(64)
    for _ in range(20):
        budget.record_step(2, budget.next_budget(2, 1), 0.0)
    assert budget.next_budget(2, 1) == 62


@pytest.mark.parametrize(("chunk", "cost"), [(512, 0.003), (512, 0.006), (512, 0.0001), (40, 0.0001), (512, 0.02)])
def test_unused_budget_of_aligned_blocks_carries_over(chunk: int, cost: float) -> None:
    alignment, base = 16, 0.15
    fed = {}
    for size in (1, alignment):
        budget = PrefillBudget(chunk, size)
        record_decode_steps(budget, 8, base)
        counts = []
        for _ in range(200):
            count = budget.next_budget(8, 1)
            counts.append(count // size * size)
            assert count == 0 or counts[-1], "a nonzero budget covers at least one block"
            budget.record_step(8, counts[-1], base + cost * counts[-1])
        fed[size] = counts[50:]
    assert max(fed[alignment]) <= max(*fed[1], MIN_PREFILL_TOKENS) + alignment - 1
    assert max(fed[alignment]) <= chunk
    assert sum(fed[alignment]) >= 0.9 * min(sum(fed[1]), (chunk - 8) // alignment * alignment * 150)


@pytest.mark.parametrize("cost", [0.0001, 0.00020, 0.00024, 0.00027, 0.0004, 0.001])
def test_most_steps_have_no_block_when_a_block_doubles_the_step(cost: float) -> None:
    base = 0.004
    budget = PrefillBudget(512, 16)
    record_decode_steps(budget, 8, base)
    step_times = []
    for _ in range(200):
        count = budget.next_budget(8, 1) // 16 * 16
        step_times.append(base + cost * count)
        budget.record_step(8, count, step_times[-1])
    assert sorted(step_times)[100] < 2 * base
    assert max(step_times) > base, "the prompt makes progress"
