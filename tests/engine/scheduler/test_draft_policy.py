"""The lengths of drafts: from acceptance and costs, with pauses, trials and new measurements."""

from itertools import pairwise

import pytest

from antiphon.engine.scheduler.drafts.draft_policy import (
    DRAFT_LENGTHS,
    MAX_PAUSE_STEPS,
    MIN_PAUSE_STEPS,
    REMEASURE_DRAFTS_AFTER_STEPS,
    REMEASURED_STEPS,
    Acceptance,
    DraftPolicy,
    expected_tokens,
)


def test_acceptance_counts_verified_tokens_only() -> None:
    acceptance = Acceptance(0.5)
    for _ in range(200):
        acceptance.record(4, 1)  # one was right, one was wrong, two were not verified
    assert acceptance.rate == pytest.approx(0.5, abs=0.01)
    for _ in range(200):
        acceptance.record(4, 4)
    assert acceptance.rate > 0.98


def test_acceptance_follows_the_text() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.record(2, 0)
    assert acceptance.rate < 0.1
    for _ in range(30):
        acceptance.record(2, 2)
    assert acceptance.rate > 0.7


def test_expected_tokens() -> None:
    assert expected_tokens(0.5, 2) == 1.75
    assert expected_tokens(0.0, 8) == 1.0 and expected_tokens(1.0, 8) == 9.0


def run_steps(policy: DraftPolicy, rates: list[float], cost_per_token: float, count: int) -> list[int]:
    """Returns the lengths of `count` steps, of which each drafted token costs the same for all sequences together."""
    lengths = []
    for _ in range(count):
        length, is_trial = policy.choose_length(len(rates), rates)
        lengths.append(length)
        if length:
            policy.record(1 if is_trial else len(rates), length, 1 + cost_per_token * length, is_trial=is_trial)
    return lengths


@pytest.mark.parametrize(
    ("rate", "cost_per_token", "best"),
    [(0.95, 0.02, {8}), (0.9, 0.1, {6, 8}), (0.5, 0.1, {2, 3}), (0.5, 0.4, {1}), (0.3, 0.4, {0}), (0.0, 0.01, {0})],
)
def test_length_with_the_greatest_gain_is_found(rate: float, cost_per_token: float, best: set[int]) -> None:
    lengths = run_steps(DraftPolicy(), [rate], cost_per_token, 100)
    assert set(lengths[20:]) - {1 if best == {0} else 0} <= best | set(DRAFT_LENGTHS[:1] if best == {0} else ())
    assert sum(length in best for length in lengths) > 85


def test_pauses_double_while_drafts_do_not_pay_off() -> None:
    lengths = run_steps(DraftPolicy(), [0.05], 0.1, 1000)
    trials = [step for step, length in enumerate(lengths) if length]
    pauses = [later - earlier - 1 for earlier, later in pairwise(trials)]
    assert pauses == [32, 64, 128, 256, 256, 256] and (pauses[0], pauses[-1]) == (MIN_PAUSE_STEPS, MAX_PAUSE_STEPS)


def test_drafts_that_cost_too_much_are_measured_again_after_each_pause() -> None:
    policy = DraftPolicy()
    lengths = run_steps(policy, [0.8] * 8, 2.0, 300)
    assert 0 < sum(map(bool, lengths)) < 20
    assert sum(map(bool, run_steps(policy, [0.8] * 8, 0.05, 400))) > 100, "the machine is free again"
    assert policy.gain > 1.5


def test_steps_without_drafts_are_measured_now_and_then() -> None:
    lengths = run_steps(DraftPolicy(), [0.9], 0.05, 3 * (REMEASURE_DRAFTS_AFTER_STEPS + REMEASURED_STEPS))
    assert sum(length == 0 for length in lengths) == 3 * REMEASURED_STEPS
    plain = [step for step, length in enumerate(lengths) if not length]
    assert plain[:REMEASURED_STEPS] == [REMEASURE_DRAFTS_AFTER_STEPS, REMEASURE_DRAFTS_AFTER_STEPS + 1]


def test_costs_depend_on_the_number_of_sequences() -> None:
    policy = DraftPolicy()
    run_steps(policy, [0.6] * 16, 1.0, 20)
    assert policy.gain == 1.0
    assert policy.choose_length(1, [0.6])[0] > 1 and policy.gain > 1.2


def test_sequences_without_drafts_share_the_cost() -> None:
    policy = DraftPolicy()
    alone, _ = policy.choose_length(1, [0.6])
    gain = policy.gain
    beside, _ = policy.choose_length(8, [0.6])
    assert alone and not policy.choose_length(8, [0.6])[0] > alone and policy.gain < gain and beside <= 1
