"""How many tokens of prompts a step may carry."""

import pytest

from antiphon.engine.scheduler.prefill_budget import (
    DECODE_WINDOW_STEPS,
    MAX_STEP_SLOWDOWN,
    MIN_PREFILL_TOKENS,
    PREFILL_WEIGHT,
    REMEASURE_AFTER_STEPS,
    PrefillBudget,
)


def decoded(pace: PrefillBudget, decoding: int, seconds: float, times: int = 5) -> None:
    for _ in range(times):
        pace.record_step(decoding, 0, seconds)


def settle(pace: PrefillBudget, decoding: int, waiting: int, base: float, cost: float, steps: int = 40) -> list[float]:
    """Run steps that take ``base`` and ``cost`` per token of a prompt; what those with prompts took."""
    mixed = []
    for _ in range(steps):
        count = pace.next_budget(decoding, waiting)
        seconds = base + cost * count
        pace.record_step(decoding, count, seconds)
        if count:
            mixed.append(seconds)
    return mixed


def test_while_nobody_decodes_the_whole_chunk_is_for_prompts() -> None:
    assert PrefillBudget(512).next_budget(0, 1) == 512
    assert PrefillBudget(1).next_budget(0, 3) == 1


def test_decoding_is_measured_before_anything_is_added() -> None:
    pace = PrefillBudget(512)
    assert pace.next_budget(8, 1) == 0
    decoded(pace, 8, 0.1, times=1)
    assert pace.next_budget(8, 1) == MIN_PREFILL_TOKENS
    assert pace.next_budget(2, 1) == 0, "the time of eight says nothing about that of two"


def test_a_step_with_prompts_takes_at_most_the_allowed_part_longer() -> None:
    for base, cost in [(0.06, 0.0024), (0.131, 0.005), (0.0035, 0.0001), (0.15, 0.001)]:
        pace = PrefillBudget(512)
        decoded(pace, 8, base)
        mixed = settle(pace, 8, 1, base, cost)
        assert max(mixed) <= MAX_STEP_SLOWDOWN * base * 1.001
        assert mixed[-1] >= (1 + (MAX_STEP_SLOWDOWN - 1) * 0.8) * base or mixed[-1] == base + 512 * cost


def test_the_budget_never_leaves_its_bounds() -> None:
    slow = PrefillBudget(512)
    decoded(slow, 8, 0.01)
    settle(slow, 8, 1, 0.01, 0.01)
    assert slow.next_budget(8, 1) == MIN_PREFILL_TOKENS
    free = PrefillBudget(100)
    decoded(free, 8, 0.01)
    settle(free, 8, 1, 0.01, 0.0, steps=20)
    assert free.next_budget(8, 1) == 100 - 8
    small = PrefillBudget(4)
    decoded(small, 8, 0.01)
    assert small.next_budget(8, 1) == 1


def test_it_grows_by_doubling_and_shrinks_at_once() -> None:
    pace = PrefillBudget(512)
    decoded(pace, 8, 0.1)
    seen = []
    for _ in range(5):
        seen.append(pace.next_budget(8, 1))
        pace.record_step(8, seen[-1], 0.1)
    assert seen == [MIN_PREFILL_TOKENS * 2**n for n in range(5)]
    for _ in range(8):
        pace.record_step(8, 128, 0.1 + 128 * 0.03)
    assert pace.next_budget(8, 1) == MIN_PREFILL_TOKENS


def test_what_a_prompt_alone_took_is_the_first_guess() -> None:
    pace = PrefillBudget(512)
    decoded(pace, 8, 0.1)
    pace.record_step(0, 512, 512 * 0.005)
    assert pace.next_budget(8, 1) == int((MAX_STEP_SLOWDOWN - 1) * 0.1 / 0.005)


def test_a_prompt_alone_says_what_others_will_take_beside_those_who_decode() -> None:
    pace = PrefillBudget(512)
    pace.record_step(0, 130, 130 * 0.001)
    decoded(pace, 1, 0.04, times=1)
    assert pace.next_budget(1, 3) == pytest.approx(3 * PREFILL_WEIGHT * 40, abs=1)


def test_the_rest_of_a_prompt_does_not_make_it_forget_what_was_tried() -> None:
    pace = PrefillBudget(512)
    decoded(pace, 4, 0.1)
    settle(pace, 4, 4, 0.1, 0.001, steps=20)
    usual = pace.next_budget(4, 4)
    pace.record_step(4, 3, 0.1 + 3 * 0.001)
    assert pace.next_budget(4, 4) == pytest.approx(usual, abs=1) and usual > 100


def test_who_waits_for_a_first_token_counts_more_than_who_waits_for_the_next() -> None:
    pace = PrefillBudget(512)
    decoded(pace, 4, 0.1)
    settle(pace, 4, 4, 0.1, 0.001, steps=20)
    few, as_many = pytest.approx((MAX_STEP_SLOWDOWN - 1) * 100, abs=1), pytest.approx(PREFILL_WEIGHT * 100, abs=3)
    assert [pace.next_budget(4, waiting) for waiting in (1, 4)] == [few, as_many]
    assert pace.next_budget(4, 8) == pytest.approx(PREFILL_WEIGHT * 200, abs=5)


def test_decoding_is_measured_again_now_and_then() -> None:
    pace = PrefillBudget(512)
    decoded(pace, 8, 0.1)
    budgets = []
    for _ in range(2 * REMEASURE_AFTER_STEPS + 4):
        budgets.append(pace.next_budget(8, 1))
        pace.record_step(8, budgets[-1], 0.1 + 0.005 * budgets[-1])
    assert [place for place, count in enumerate(budgets) if count == 0] == [
        *(REMEASURE_AFTER_STEPS, REMEASURE_AFTER_STEPS + 1),
        *(2 * REMEASURE_AFTER_STEPS + 2, 2 * REMEASURE_AFTER_STEPS + 3),
    ]


def test_a_step_right_after_a_prompt_does_not_count_as_plain() -> None:
    pace = PrefillBudget(512)
    decoded(pace, 8, 0.1)
    for _ in range(20):
        pace.record_step(8, 10, 0.15)
        pace.record_step(8, 0, 0.13)
    assert pace.decode_seconds(8) == 0.1
    decoded(pace, 8, 0.12, times=DECODE_WINDOW_STEPS)
    assert pace.decode_seconds(8) == 0.12


def test_steps_that_were_slowed_while_a_prompt_was_made_do_not_count_as_usual() -> None:
    pace = PrefillBudget(512)
    decoded(pace, 8, 0.1, times=8)
    decoded(pace, 8, 0.25, times=7)
    assert pace.decode_seconds(8) == 0.1
    decoded(pace, 8, 0.25)
    assert pace.decode_seconds(8) == 0.25


def test_a_step_with_prompts_that_is_faster_than_decoding_alone_shows_that_this_was_measured_wrongly() -> None:
    pace = PrefillBudget(512)
    decoded(pace, 8, 0.3)  # while something else was running
    pace.record_step(8, 30, 0.15)
    assert pace.next_budget(8, 1) == 0 and pace.decode_seconds(8) is None
    decoded(pace, 8, 0.1)
    settle(pace, 8, 1, 0.1, 0.002)
    assert pace.next_budget(8, 1) == pytest.approx((MAX_STEP_SLOWDOWN - 1) * 50, abs=1)


@pytest.mark.parametrize(("base", "past", "cost"), [(0.04, 0.03, 0.0006), (0.04, 0.06, 0.001), (0.2, 0.1, 0.01)])
def test_where_a_few_tokens_take_too_long_more_come_in_less_than_half_of_the_steps(
    base: float, past: float, cost: float
) -> None:
    """``past``: what reading a long prompt's own past takes, however many tokens a step adds to it."""
    pace = PrefillBudget(512)
    decoded(pace, 8, base)
    steps = []
    for _ in range(200):
        count = pace.next_budget(8, 1)
        seconds = base + (past + cost * count if count else 0)
        pace.record_step(8, count, seconds)
        steps.append((count, seconds))
    late = steps[40:]
    mixed = [count for count, _ in late if count]
    assert 0.2 * len(late) < len(mixed) < 0.5 * len(late)
    assert sum(mixed) / sum(seconds for _, seconds in late) >= 0.9 * MIN_PREFILL_TOKENS / (
        base + past + cost * MIN_PREFILL_TOKENS
    )
    assert max(seconds for _, seconds in late) < 4 * base
    for _ in range(100):  # a short one comes
        count = pace.next_budget(8, 1)
        pace.record_step(8, count, base + base / 100 * count)
    assert pace.next_budget(8, 1) == pytest.approx((MAX_STEP_SLOWDOWN - 1) * 100, abs=2)


def test_one_slow_step_changes_nothing() -> None:
    pace = PrefillBudget(512)
    decoded(pace, 8, 0.1)
    settle(pace, 8, 1, 0.1, 0.002)
    usual = pace.next_budget(8, 1)
    pace.record_step(8, usual, 9.0)
    pace.record_step(8, 0, 9.0)
    assert pace.next_budget(8, 1) == usual


def test_a_clock_that_stands_still_does_no_harm() -> None:
    pace = PrefillBudget(64)
    for _ in range(20):
        pace.record_step(2, pace.next_budget(2, 1), 0.0)
    assert pace.next_budget(2, 1) == 62


@pytest.mark.parametrize(("chunk", "cost"), [(512, 0.003), (512, 0.006), (512, 0.0001), (40, 0.0001), (512, 0.02)])
def test_what_is_left_of_whole_blocks_is_kept_for_the_next_step(chunk: int, cost: float) -> None:
    grain, base = 16, 0.15
    fed = {}
    for size in (1, grain):
        pace = PrefillBudget(chunk, size)
        decoded(pace, 8, base)
        counts = []
        for _ in range(200):
            budget = pace.next_budget(8, 1)
            counts.append(budget // size * size)
            assert budget == 0 or counts[-1], "what is given is enough for a block"
            pace.record_step(8, counts[-1], base + cost * counts[-1])
        fed[size] = counts[50:]
    assert max(fed[grain]) <= max(*fed[1], MIN_PREFILL_TOKENS) + grain - 1
    assert max(fed[grain]) <= chunk
    assert sum(fed[grain]) >= 0.9 * min(sum(fed[1]), (chunk - 8) // grain * grain * 150)


@pytest.mark.parametrize("cost", [0.0001, 0.00020, 0.00024, 0.00027, 0.0004, 0.001])
def test_where_a_block_doubles_a_step_most_steps_have_none(cost: float) -> None:
    base = 0.004
    pace = PrefillBudget(512, 16)
    decoded(pace, 8, base)
    took = []
    for _ in range(200):
        count = pace.next_budget(8, 1) // 16 * 16
        took.append(base + cost * count)
        pace.record_step(8, count, took[-1])
    assert sorted(took)[100] < 2 * base
    assert max(took) > base, "the prompt goes on"
