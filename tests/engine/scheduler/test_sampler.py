"""How tokens are chosen from logits: filters, penalties, bias, masks, seeds, log-probabilities."""

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from antiphon.engine.protocol import Sampling
from antiphon.engine.scheduler.sampler import TOP_P_CANDIDATES, SamplingState, compute_logprobs, sample_tokens

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])


class Masked:
    """A guide whose word is what a function says."""

    def __init__(self, mask: Any) -> None:
        self.next_mask = mask

    def advance(self, token: int) -> None:
        pass


pytestmark = pytest.mark.usefixtures("chosen_either_way")


def dice(prompt: tuple[int, ...] = (), stops: tuple[int, ...] = (), mask: Any = None, **sampling: Any) -> SamplingState:
    return SamplingState(Sampling(**{"seed": 1} | sampling), prompt, frozenset(stops), Masked(mask) if mask else None)


def frequencies(logits: Any, draws: int = 4000, **sampling: Any) -> dict[int, float]:
    rows = sample_tokens(logits.expand(draws, -1), [dice(**sampling | {"seed": seed}) for seed in range(draws)])
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
    measured = frequencies(LOGITS, **sampling)
    assert set(measured) <= set(allowed)
    assert [measured.get(token, 0.0) for token in allowed] == pytest.approx(expected, abs=0.03)


def test_temperature_zero_takes_the_likeliest_whatever_the_seed() -> None:
    for temperature in (0.0, 1e-30):
        assert frequencies(LOGITS, draws=20, temperature=temperature) == {0: 1.0}


def test_a_seed_fixes_the_draws_whatever_the_batch() -> None:
    rows = torch.randn(30, 50, generator=torch.Generator().manual_seed(0))
    alone, crowded = dice(seed=5, top_p=0.9), dice(seed=5, top_p=0.9)
    first = [sample_tokens(row[None], [alone])[0] for row in rows]
    second = []
    for step, row in enumerate(rows):
        others = [dice(seed=step * 10 + n, temperature=0.7 * n) for n in range(step % 4)]
        batch = torch.cat([rows[: len(others)], row[None]])
        second.append(sample_tokens(batch, [*others, crowded])[-1])
    assert first == second
    different = dice(seed=6, top_p=0.9)
    assert first != [sample_tokens(row[None], [different])[0] for row in rows]
    assert dice(seed=-1).next_uniform() != dice(seed=1).next_uniform()
    assert (
        SamplingState(Sampling(), (), frozenset()).next_uniform()
        != SamplingState(Sampling(), (), frozenset()).next_uniform()
    )


def test_top_p_looks_beyond_its_head_when_it_must() -> None:
    flat = torch.zeros(4 * TOP_P_CANDIDATES)
    flat[7] = 0.01
    kept = frequencies(flat, draws=200, top_p=0.9)
    assert len(kept) > 150
    sure = torch.full((4 * TOP_P_CANDIDATES,), -20.0)
    sure[[5, 9]] = torch.tensor([1.0, 0.9])
    assert set(frequencies(sure, draws=50, top_p=0.99)) == {5, 9}


def test_penalties_are_those_of_the_field() -> None:
    spoken = dice(presence_penalty=0.5, frequency_penalty=0.25)
    for token in (1, 1, 3):
        spoken.record_token(token)
    assert spoken.adjust_logits(LOGITS).tolist() == [2.0, 1.0 - 0.5 - 0.5, 0.0, -1.0 - 0.5 - 0.25, -2.0]
    repeating = dice(prompt=(0,), repetition_penalty=2.0)
    repeating.record_token(3)
    assert repeating.adjust_logits(LOGITS).tolist() == [1.0, 1.0, 0.0, -2.0, -2.0]
    assert LOGITS.tolist() == [2.0, 1.0, 0.0, -1.0, -2.0]


def test_repetition_penalty_is_transformers_own() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    prompt = (0, 2, 4)
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt]), LOGITS[None].clone())[0]
    assert torch.allclose(dice(prompt=prompt, repetition_penalty=1.3).adjust_logits(LOGITS), theirs)


def test_filters_are_transformers_own() -> None:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(200, generator=torch.Generator().manual_seed(3)) * 3
    ids: Any = torch.zeros(1, 0, dtype=torch.long)
    scores: Any = logits[None]
    for warp in (TopKLogitsWarper(50), TopPLogitsWarper(0.8), MinPLogitsWarper(0.05)):
        scores = warp(ids, scores)
    theirs = scores[0].softmax(-1)
    allowed = set(theirs.nonzero()[:, 0].tolist())
    measured = frequencies(logits, draws=6000, top_k=50, top_p=0.8, min_p=0.05)
    assert set(measured) <= allowed
    assert all(measured.get(token, 0.0) == pytest.approx(float(theirs[token]), abs=0.03) for token in allowed)


def test_stop_tokens_are_forbidden_until_enough_is_said() -> None:
    early = dice(stops=(0,), min_tokens=2, temperature=0.0)
    assert [sample_tokens(LOGITS[None], [early])[0] for _ in range(3)] == [1, 1, 0]


def test_a_mask_says_what_is_allowed() -> None:
    masks = iter([torch.tensor([False, False, True, True, False]), None, torch.zeros(5, dtype=torch.bool)])
    masked = dice(mask=lambda: next(masks), temperature=0.0)
    assert [sample_tokens(LOGITS[None], [masked])[0] for _ in range(3)] == [2, 0, None]


def test_a_row_without_numbers_gives_no_token_and_leaves_the_others_alone() -> None:
    rows = torch.stack([LOGITS, LOGITS * float("nan"), LOGITS + float("inf"), LOGITS])
    tokens = sample_tokens(rows, [dice(temperature=0.0), dice(), dice(temperature=0.0), dice(top_k=1)])
    assert tokens == [0, None, None, 0]


def test_log_probabilities_are_log_softmax() -> None:
    rows = torch.randn(3, 11, generator=torch.Generator().manual_seed(2))
    truth = rows.log_softmax(-1)
    for top in (0, 4):
        entries = compute_logprobs(rows, [3, 0, 10], top)
        assert [entry.logprob for entry in entries] == pytest.approx(
            [float(truth[n, t]) for n, t in enumerate([3, 0, 10])]
        )
        assert all(len(entry.top) == top for entry in entries)
    best = entries[0].top
    assert [token for token, _ in best] == truth[0].topk(4).indices.tolist()
    assert [value for _, value in best] == pytest.approx(truth[0].topk(4).values.tolist())
