"""The sampler: filters, penalties, logit bias, grammar masks, seeds and log-probabilities."""

from collections import Counter
from typing import Any

import pytest
import torch

from antiphon.engine.protocol import Sampling
from antiphon.engine.scheduler.logprobs import compute_logprobs
from antiphon.engine.scheduler.sampler import TOP_P_CANDIDATES, SamplingState, sample_tokens
from tests.engine.fake_matcher import FakeMatcher

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])


pytestmark = pytest.mark.usefixtures("with_and_without_kernels")


def make_sampling_state(
    prompt: tuple[int, ...] = (), stops: tuple[int, ...] = (), next_mask: Any = None, **sampling: Any
) -> SamplingState:
    return SamplingState(
        Sampling(**{"seed": 1} | sampling), prompt, frozenset(stops), FakeMatcher(next_mask) if next_mask else None
    )


def measure_frequencies(logits: Any, draws: int = 4000, **sampling: Any) -> dict[int, float]:
    rows = sample_tokens(
        logits.expand(draws, -1), [make_sampling_state(**sampling | {"seed": seed}) for seed in range(draws)]
    )
    return {token: count / draws for token, count in Counter(rows).items() if token is not None}


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"temperature": 2.0}, [0, 1, 2, 3, 4]),
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.7}, [0, 1]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.0}, [0]),
        ({"top_k": 3, "top_p": 0.95}, [0, 1, 2]),
        ({"min_p": 0.1}, [0, 1, 2]),
        ({"min_p": 1.0}, [0]),
        ({"top_p": 0.99, "min_p": 0.3}, [0, 1]),
        ({"logit_bias": {0: -100.0, 4: 3.0}}, [1, 2, 3, 4]),
    ],
)
def test_draws_follow_the_filtered_distribution(sampling: dict[str, Any], allowed: list[int]) -> None:
    logits = LOGITS.clone()
    for token, bias in sampling.get("logit_bias", {}).items():
        logits[token] += bias
    expected = (logits[allowed] / sampling.get("temperature", 1.0)).softmax(-1).tolist()
    measured = measure_frequencies(LOGITS, **sampling)
    assert set(measured) <= set(allowed)
    assert [measured.get(token, 0.0) for token in allowed] == pytest.approx(expected, abs=0.03)


def test_temperature_zero_always_takes_the_most_likely_token() -> None:
    for temperature in (0.0, 1e-30):
        assert measure_frequencies(LOGITS, draws=20, temperature=temperature) == {0: 1.0}


def test_seeded_draws_do_not_depend_on_the_batch() -> None:
    rows = torch.randn(30, 50, generator=torch.Generator().manual_seed(0))
    lone_state, batch_state = make_sampling_state(seed=5, top_p=0.9), make_sampling_state(seed=5, top_p=0.9)
    first = [sample_tokens(row[None], [lone_state])[0] for row in rows]
    second = []
    for step, row in enumerate(rows):
        others = [make_sampling_state(seed=step * 10 + n, temperature=0.7 * n) for n in range(step % 4)]
        batch = torch.cat([rows[: len(others)], row[None]])
        second.append(sample_tokens(batch, [*others, batch_state])[-1])
    assert first == second
    different = make_sampling_state(seed=6, top_p=0.9)
    assert first != [sample_tokens(row[None], [different])[0] for row in rows]
    assert make_sampling_state(seed=-1).next_uniform() != make_sampling_state(seed=1).next_uniform()
    assert (
        SamplingState(Sampling(), (), frozenset()).next_uniform()
        != SamplingState(Sampling(), (), frozenset()).next_uniform()
    )


def test_top_p_uses_all_logits_when_the_candidates_are_too_few() -> None:
    flat = torch.zeros(4 * TOP_P_CANDIDATES)
    flat[7] = 0.01
    frequencies = measure_frequencies(flat, draws=200, top_p=0.9)
    assert len(frequencies) > 150
    peaked = torch.full((4 * TOP_P_CANDIDATES,), -20.0)
    peaked[[5, 9]] = torch.tensor([1.0, 0.9])
    assert set(measure_frequencies(peaked, draws=50, top_p=0.99)) == {5, 9}


def test_presence_frequency_and_repetition_penalties() -> None:
    penalized = make_sampling_state(presence_penalty=0.5, frequency_penalty=0.25)
    for token in (1, 1, 3):
        penalized.record_token(token)
    assert penalized.adjust_logits(LOGITS).tolist() == [2.0, 1.0 - 0.5 - 0.5, 0.0, -1.0 - 0.5 - 0.25, -2.0]
    repetition_penalized = make_sampling_state(prompt=(0,), repetition_penalty=2.0)
    repetition_penalized.record_token(3)
    assert repetition_penalized.adjust_logits(LOGITS).tolist() == [1.0, 1.0, 0.0, -2.0, -2.0]
    assert LOGITS.tolist() == [2.0, 1.0, 0.0, -1.0, -2.0]


def test_repetition_penalty_equals_that_of_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    prompt = (0, 2, 4)
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt]), LOGITS[None].clone())[0]
    assert torch.allclose(make_sampling_state(prompt=prompt, repetition_penalty=1.3).adjust_logits(LOGITS), expected)


def test_filters_equal_those_of_transformers() -> None:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(200, generator=torch.Generator().manual_seed(3)) * 3
    ids: Any = torch.zeros(1, 0, dtype=torch.long)
    scores: Any = logits[None]
    for warp in (TopKLogitsWarper(50), TopPLogitsWarper(0.8), MinPLogitsWarper(0.05)):
        scores = warp(ids, scores)
    expected = scores[0].softmax(-1)
    allowed = set(expected.nonzero()[:, 0].tolist())
    measured = measure_frequencies(logits, draws=6000, top_k=50, top_p=0.8, min_p=0.05)
    assert set(measured) <= allowed
    assert all(measured.get(token, 0.0) == pytest.approx(float(expected[token]), abs=0.03) for token in allowed)


def test_stop_tokens_are_forbidden_before_min_tokens() -> None:
    state = make_sampling_state(stops=(0,), min_tokens=2, temperature=0.0)
    assert [sample_tokens(LOGITS[None], [state])[0] for _ in range(3)] == [1, 1, 0]


def test_mask_restricts_the_allowed_tokens() -> None:
    masks = iter([torch.tensor([False, False, True, True, False]), None, torch.zeros(5, dtype=torch.bool)])
    state = make_sampling_state(next_mask=lambda: next(masks), temperature=0.0)
    assert [sample_tokens(LOGITS[None], [state])[0] for _ in range(3)] == [2, 0, None]


def test_non_finite_rows_give_no_token_and_leave_the_others_alone() -> None:
    rows = torch.stack([LOGITS, LOGITS * float("nan"), LOGITS + float("inf"), LOGITS])
    tokens = sample_tokens(
        rows,
        [
            make_sampling_state(temperature=0.0),
            make_sampling_state(),
            make_sampling_state(temperature=0.0),
            make_sampling_state(top_k=1),
        ],
    )
    assert tokens == [0, None, None, 0]


def test_logprobs_equal_log_softmax() -> None:
    rows = torch.randn(3, 11, generator=torch.Generator().manual_seed(2))
    expected = rows.log_softmax(-1)
    for top in (0, 4):
        entries = compute_logprobs(rows, [3, 0, 10], top)
        assert [entry.logprob for entry in entries] == pytest.approx(
            [float(expected[n, t]) for n, t in enumerate([3, 0, 10])]
        )
        assert all(len(entry.top) == top for entry in entries)
    best = entries[0].top
    assert [token for token, _ in best] == expected[0].topk(4).indices.tolist()
    assert [value for _, value in best] == pytest.approx(expected[0].topk(4).values.tolist())
