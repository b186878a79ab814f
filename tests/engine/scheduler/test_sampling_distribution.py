"""Drawing from rows of a real vocabulary's size: exact distributions, and no row that knows of another."""

import random
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from antiphon.engine.protocol import Sampling
from antiphon.engine.scheduler.sampler import (
    SOFTMAX_BLOCK,
    TOP_P_CANDIDATES,
    SamplingState,
    compute_logprobs,
    sample_tokens,
    top_tokens,
)
from tests.counts import FULL_COUNTS

DRAWS = 100_000 if FULL_COUNTS else 2_000
SIZES = (
    [3, SOFTMAX_BLOCK - 1, SOFTMAX_BLOCK, SOFTMAX_BLOCK + 1, 5 * SOFTMAX_BLOCK + 7]
    if FULL_COUNTS
    else [3, SOFTMAX_BLOCK, SOFTMAX_BLOCK + 1]
)
LARGE = 20_011
"""Not a multiple of any block."""


pytestmark = pytest.mark.usefixtures("chosen_either_way")


class Masked:
    """A guide whose word is what a function says."""

    def __init__(self, mask: Any) -> None:
        self.next_mask = mask

    def advance(self, token: int) -> None:
        pass


def dice(seed: int = 1, mask: Any = None, stops: tuple[int, ...] = (), **sampling: Any) -> SamplingState:
    return SamplingState(Sampling(**sampling, seed=seed), (), frozenset(stops), Masked(mask) if mask else None)


def noise(rows: int, size: int, seed: int = 0) -> Any:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 3


def reference(logits: Any, s: Sampling) -> Any:
    """The distribution written out over sorted tokens, in double precision."""
    values, ids = (logits.double() / s.temperature).sort(descending=True, stable=True)
    weights = values[: s.top_k or None].softmax(-1)
    before = weights.cumsum(-1) - weights
    keep = (before < s.top_p) if s.top_p < 1 else torch.ones_like(weights, dtype=torch.bool)
    keep[0] = True
    weights = weights * (keep & (weights >= s.min_p * weights[0]))
    full = torch.zeros(len(logits), dtype=torch.float64)
    full[ids[: len(weights)]] = weights / weights.sum()
    return full


def surprise(row: Any, sampling: dict[str, Any]) -> tuple[float, int]:
    """Chi-square of the draws against the exact distribution, and its degrees of freedom; rare tokens are one class."""
    truth = reference(row, Sampling(**sampling))
    one = dice(seed=42, **sampling)
    drawn: list[int] = []
    while len(drawn) < DRAWS:
        drawn += [token for token in sample_tokens(row.expand(1000, -1), [one] * 1000) if token is not None]
    counts = torch.bincount(torch.tensor(drawn), minlength=len(row)).double()
    assert not counts[truth == 0].any()
    common = truth * len(drawn) >= 5
    expected = torch.cat([truth[common], truth[~common].sum()[None]]) * len(drawn)
    seen = torch.cat([counts[common], counts[~common].sum()[None]])
    used = expected > 0
    return float(((seen - expected)[used] ** 2 / expected[used]).sum()), int(used.sum()) - 1


@pytest.mark.parametrize("size", SIZES)
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
def test_draws_have_exactly_the_distribution_that_is_asked_for(size: int, sampling: dict[str, Any]) -> None:
    value, freedom = surprise(noise(1, size)[0], sampling)
    assert value < freedom + 5 * (2 * max(freedom, 1)) ** 0.5 + 5


KINDS: list[dict[str, Any]] = [
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
def test_a_row_is_drawn_alone_as_in_any_batch(threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        rows = noise(len(KINDS) * 2, LARGE).round(decimals=1)  # with ties
        alone_dice = [dice(seed=n, **KINDS[n % len(KINDS)]) for n in range(len(rows))]
        crowd_dice = [dice(seed=n, **KINDS[n % len(KINDS)]) for n in range(len(rows))]
        chance = random.Random(9)
        for _ in range(3):
            alone = [sample_tokens(row[None], [die])[0] for row, die in zip(rows, alone_dice, strict=True)]
            order = chance.sample(range(len(rows)), len(rows))
            crowd = sample_tokens(rows[order], [crowd_dice[n] for n in order])
            assert [crowd[order.index(n)] for n in range(len(rows))] == alone
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("sampling", KINDS)
def test_what_is_drawn_could_be_drawn(sampling: dict[str, Any]) -> None:
    rows = noise(12, LARGE, seed=4)
    rows[:, 100:] -= 2.0
    tokens = sample_tokens(rows, [dice(seed=n, **sampling) for n in range(12)])
    for row, token in zip(rows, tokens, strict=True):
        adjusted = dice(**sampling).adjust_logits(row)
        s = Sampling(**sampling | {"temperature": max(sampling.get("temperature", 1.0), 1e-5)})
        assert token is not None
        if s.top_k == 1 or s.temperature <= 1e-5 or s.min_p == 1.0 or s.top_p < 1e-8:
            assert token == int(adjusted.argmax())
        else:
            assert reference(adjusted, s)[token] > 0


def test_a_nucleus_wider_than_the_head_is_found_whole() -> None:
    flat = noise(1, 8 * TOP_P_CANDIDATES) * 0.01
    truth = reference(flat[0], Sampling(top_p=0.5))
    assert int((truth > 0).sum()) > 2 * TOP_P_CANDIDATES
    tokens = sample_tokens(flat.expand(400, -1), [dice(seed=seed, top_p=0.5) for seed in range(400)])
    assert all(token is not None and truth[token] > 0 for token in tokens)
    assert len({*tokens} - {*flat[0].topk(TOP_P_CANDIDATES).indices.tolist()}) > 100


@pytest.mark.parametrize(
    "sampling", [{}, {"top_k": 9}, {"top_p": 0.9}, {"min_p": 0.5}, {"temperature": 0.0}, {"temperature": 1e-4}]
)
def test_one_allowed_token_is_taken_and_none_gives_none(sampling: dict[str, Any]) -> None:
    rows = noise(2, LARGE)
    for allowed in (0, 777, LARGE - 1):
        mask = torch.zeros(LARGE, dtype=torch.bool)
        mask[allowed] = True
        assert sample_tokens(rows, [dice(mask=lambda m=mask: m, **sampling), dice(temperature=0.0)]) == [
            allowed,
            int(rows[1].argmax()),
        ]
    nothing = torch.zeros(LARGE, dtype=torch.bool)
    assert sample_tokens(rows[:1], [dice(mask=lambda: nothing, **sampling)]) == [None]


@pytest.mark.parametrize("sampling", KINDS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_one_number_that_is_none_spoils_its_row_only(sampling: dict[str, Any], wrong: float) -> None:
    rows = noise(3, LARGE)
    rows[1, 15_000] = wrong
    tokens = sample_tokens(rows, [dice(**sampling) for _ in range(3)])
    assert tokens[1] is None and None not in (tokens[0], tokens[2])


def test_masked_rows_are_drawn_from_what_is_left() -> None:
    rows = noise(1, LARGE)
    rows[:, 5:] = float("-inf")
    for sampling in KINDS[:12]:
        token = sample_tokens(rows, [dice(**sampling)])[0]
        assert token is not None and token < 5


@pytest.mark.parametrize("size", [1, 5, 400, LARGE])
@pytest.mark.parametrize("count", [1, 3, 50, 1024])
def test_the_likeliest_are_found_exactly(size: int, count: int) -> None:
    rows = noise(4, size, seed=size)
    rows[1] = 0.0
    rows[2, : size // 2] = float("-inf")
    values, ids = top_tokens(rows, min(count, size))
    assert torch.equal(values, rows.topk(min(count, size)).values)
    assert torch.equal(rows.gather(1, ids), values)
    assert all(len(set(row)) == len(row) for row in ids.tolist())


def test_greedy_takes_the_first_of_equals() -> None:
    row = torch.zeros(1, LARGE)
    row[0, [300, 9000, 19_999]] = 2.0
    assert sample_tokens(row, [dice(temperature=0.0)]) == [300]


def test_log_probabilities_of_a_large_row_are_those_of_log_softmax() -> None:
    rows = noise(3, LARGE)
    rows[2, 100:] = float("-inf")
    truth = rows.double().log_softmax(-1)
    entries = compute_logprobs(rows, [5, LARGE - 1, 50], 20)
    for n, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(float(truth[n, entry.id]), abs=1e-5)
        assert [value for _, value in entry.top] == pytest.approx(truth[n].topk(20).values.tolist(), abs=1e-5)
