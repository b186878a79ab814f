"""Sampling from rows of a real vocabulary's size: exact distributions, and rows that do not affect each other."""

import random
from typing import Any

import pytest
import torch

from antiphon.engine.protocol import Sampling
from antiphon.engine.scheduler.logprobs import compute_logprobs
from antiphon.engine.scheduler.sampler import (
    SOFTMAX_BLOCK,
    TOP_P_CANDIDATES,
    SamplingState,
    sample_tokens,
    top_tokens,
)
from tests.counts import FULL_COUNTS
from tests.engine.fake_matcher import FakeMatcher

NUM_DRAWS = 100_000 if FULL_COUNTS else 2_000
VOCAB_SIZES = (
    [3, SOFTMAX_BLOCK - 1, SOFTMAX_BLOCK, SOFTMAX_BLOCK + 1, 5 * SOFTMAX_BLOCK + 7]
    if FULL_COUNTS
    else [3, SOFTMAX_BLOCK, SOFTMAX_BLOCK + 1]
)
VOCAB_SIZE = 20_011
"""A vocabulary size that is not a multiple of any block."""


pytestmark = pytest.mark.usefixtures("with_and_without_kernels")


def make_sampling_state(
    seed: int = 1, next_mask: Any = None, stops: tuple[int, ...] = (), **sampling: Any
) -> SamplingState:
    return SamplingState(
        Sampling(**sampling, seed=seed), (), frozenset(stops), FakeMatcher(next_mask) if next_mask else None
    )


def make_random_logits(rows: int, size: int, seed: int = 0) -> Any:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 3


def compute_distribution(logits: Any, sampling_params: Sampling) -> Any:
    """Returns the exact distribution, computed over sorted tokens in double precision."""
    values, ids = (logits.double() / sampling_params.temperature).sort(descending=True, stable=True)
    weights = values[: sampling_params.top_k or None].softmax(-1)
    before = weights.cumsum(-1) - weights
    keep = (before < sampling_params.top_p) if sampling_params.top_p < 1 else torch.ones_like(weights, dtype=torch.bool)
    keep[0] = True
    weights = weights * (keep & (weights >= sampling_params.min_p * weights[0]))
    distribution = torch.zeros(len(logits), dtype=torch.float64)
    distribution[ids[: len(weights)]] = weights / weights.sum()
    return distribution


def compute_chi_square(row: Any, sampling: dict[str, Any]) -> tuple[float, int]:
    """Returns chi-square of the draws against the exact distribution, and its degrees of freedom.

    Tokens with an expected count below 5 are one class.
    """
    distribution = compute_distribution(row, Sampling(**sampling))
    state = make_sampling_state(seed=42, **sampling)
    tokens: list[int] = []
    while len(tokens) < NUM_DRAWS:
        tokens += [token for token in sample_tokens(row.expand(1000, -1), [state] * 1000) if token is not None]
    counts = torch.bincount(torch.tensor(tokens), minlength=len(row)).double()
    assert not counts[distribution == 0].any()
    common = distribution * len(tokens) >= 5
    expected = torch.cat([distribution[common], distribution[~common].sum()[None]]) * len(tokens)
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    nonzero = expected > 0
    return float(((observed - expected)[nonzero] ** 2 / expected[nonzero]).sum()), int(nonzero.sum()) - 1


@pytest.mark.parametrize("size", VOCAB_SIZES)
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.0, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.02},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
    ],
)
def test_draws_have_exactly_the_requested_distribution(size: int, sampling: dict[str, Any]) -> None:
    statistic, degrees_of_freedom = compute_chi_square(make_random_logits(1, size)[0], sampling)
    assert statistic < degrees_of_freedom + 5 * (2 * max(degrees_of_freedom, 1)) ** 0.5 + 5


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 1e-9},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_p": 0.999, "temperature": 3.0},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.1},
    {"logit_bias": {7: 8.0}, "top_p": 0.5},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.3, "top_k": 10},
]


@pytest.mark.parametrize("threads", [1, 2])
def test_row_gets_the_same_token_alone_and_in_any_batch(threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        rows = make_random_logits(len(SAMPLINGS) * 2, VOCAB_SIZE).round(decimals=1)  # with ties
        lone_states = [make_sampling_state(seed=n, **SAMPLINGS[n % len(SAMPLINGS)]) for n in range(len(rows))]
        batch_states = [make_sampling_state(seed=n, **SAMPLINGS[n % len(SAMPLINGS)]) for n in range(len(rows))]
        generator = random.Random(9)
        for _ in range(3):
            expected = [sample_tokens(row[None], [state])[0] for row, state in zip(rows, lone_states, strict=True)]
            order = generator.sample(range(len(rows)), len(rows))
            tokens = sample_tokens(rows[order], [batch_states[n] for n in order])
            assert [tokens[order.index(n)] for n in range(len(rows))] == expected
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drawn_tokens_have_a_nonzero_probability(sampling: dict[str, Any]) -> None:
    rows = make_random_logits(12, VOCAB_SIZE, seed=4)
    rows[:, 100:] -= 2.0
    tokens = sample_tokens(rows, [make_sampling_state(seed=n, **sampling) for n in range(12)])
    for row, token in zip(rows, tokens, strict=True):
        adjusted = make_sampling_state(**sampling).adjust_logits(row)
        sampling_params = Sampling(**sampling | {"temperature": max(sampling.get("temperature", 1.0), 1e-5)})
        assert token is not None
        if (
            sampling_params.top_k == 1
            or sampling_params.temperature <= 1e-5
            or sampling_params.min_p == 1.0
            or sampling_params.top_p < 1e-8
        ):
            assert token == int(adjusted.argmax())
        else:
            assert compute_distribution(adjusted, sampling_params)[token] > 0


def test_top_p_nucleus_larger_than_the_candidates_is_complete() -> None:
    flat = make_random_logits(1, 8 * TOP_P_CANDIDATES) * 0.01
    expected = compute_distribution(flat[0], Sampling(top_p=0.5))
    assert int((expected > 0).sum()) > 2 * TOP_P_CANDIDATES
    tokens = sample_tokens(flat.expand(400, -1), [make_sampling_state(seed=seed, top_p=0.5) for seed in range(400)])
    assert all(token is not None and expected[token] > 0 for token in tokens)
    assert len({*tokens} - {*flat[0].topk(TOP_P_CANDIDATES).indices.tolist()}) > 100


@pytest.mark.parametrize(
    "sampling", [{}, {"top_k": 9}, {"top_p": 0.9}, {"min_p": 0.5}, {"temperature": 0.0}, {"temperature": 1e-4}]
)
def test_single_allowed_token_is_taken_and_an_empty_mask_gives_none(sampling: dict[str, Any]) -> None:
    rows = make_random_logits(2, VOCAB_SIZE)
    for allowed in (0, 777, VOCAB_SIZE - 1):
        mask = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
        mask[allowed] = True
        assert sample_tokens(
            rows,
            [make_sampling_state(next_mask=lambda m=mask: m, **sampling), make_sampling_state(temperature=0.0)],
        ) == [
            allowed,
            int(rows[1].argmax()),
        ]
    empty_mask = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    assert sample_tokens(rows[:1], [make_sampling_state(next_mask=lambda: empty_mask, **sampling)]) == [None]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_logit_affects_only_its_row(sampling: dict[str, Any], value: float) -> None:
    rows = make_random_logits(3, VOCAB_SIZE)
    rows[1, 15_000] = value
    tokens = sample_tokens(rows, [make_sampling_state(**sampling) for _ in range(3)])
    assert tokens[1] is None and None not in (tokens[0], tokens[2])


def test_masked_logits_are_never_drawn() -> None:
    rows = make_random_logits(1, VOCAB_SIZE)
    rows[:, 5:] = float("-inf")
    for sampling in SAMPLINGS[:12]:
        token = sample_tokens(rows, [make_sampling_state(**sampling)])[0]
        assert token is not None and token < 5


@pytest.mark.parametrize("size", [1, 5, 400, VOCAB_SIZE])
@pytest.mark.parametrize("count", [1, 3, 50, 1024])
def test_top_tokens_equal_those_of_topk(size: int, count: int) -> None:
    rows = make_random_logits(4, size, seed=size)
    rows[1] = 0.0
    rows[2, : size // 2] = float("-inf")
    values, ids = top_tokens(rows, min(count, size))
    assert torch.equal(values, rows.topk(min(count, size)).values)
    assert torch.equal(rows.gather(1, ids), values)
    assert all(len(set(row)) == len(row) for row in ids.tolist())


def test_greedy_takes_the_first_of_equal_logits() -> None:
    row = torch.zeros(1, VOCAB_SIZE)
    row[0, [300, 9000, 19_999]] = 2.0
    assert sample_tokens(row, [make_sampling_state(temperature=0.0)]) == [300]


def test_logprobs_of_a_large_row_equal_log_softmax() -> None:
    rows = make_random_logits(3, VOCAB_SIZE)
    rows[2, 100:] = float("-inf")
    expected = rows.double().log_softmax(-1)
    entries = compute_logprobs(rows, [5, VOCAB_SIZE - 1, 50], 20)
    for n, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(float(expected[n, entry.id]), abs=1e-5)
        assert [value for _, value in entry.top] == pytest.approx(expected[n].topk(20).values.tolist(), abs=1e-5)
