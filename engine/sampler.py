"""From rows of logits to tokens: penalties, bias, masks, filters, one uniform number per token, log-probabilities.

It knows no models and no schedules. Each row is sampled with its own random numbers, in its own order, so that what a
request gets never depends on who else is running. The order of treatment is transformers': repetition penalty, presence
and frequency penalties, bias, mask, then temperature, top_k, top_p, min_p.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.protocol import Sampling, TokenLogprob

HEAD = 1024
"""top_p first looks only at this many of the likeliest tokens; if they do not hold enough mass, at all of them."""

COLDEST = 1e-5
"""At this temperature and below the likeliest token is taken; dividing by less would overflow."""

Mask = Callable[[], Tensor | None]
"""The grammar's word on the next token: a bool tensor (vocabulary,), True where allowed; None allows everything."""


class Dice:
    """The state of one request's choices: its random numbers, what it has said, what it may say.

    ``prompt`` counts for the repetition penalty only. ``stops`` are forbidden for the first ``min_tokens`` tokens.
    """

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], stops: frozenset[int], mask: Mask | None = None
    ) -> None:
        self.sampling = sampling
        self.mask = mask
        seed = None if sampling.seed is None else sampling.seed & 0xFFFF_FFFF_FFFF_FFFF  # -1 must not equal 1
        self._random = random.Random(seed)  # noqa: S311  dice, not keys
        self._prompt = set(prompt) if sampling.repetition_penalty != 1.0 else set()
        self._said: Counter[int] = Counter()
        self._stops = stops

    @property
    def plain(self) -> bool:
        """Whether the logits are taken as they are."""
        s = self.sampling
        penalised = s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1.0
        return not (penalised or s.logit_bias or self.mask or (self._stops and self._early))

    @property
    def _early(self) -> bool:
        return self._said.total() < self.sampling.min_tokens

    def uniform(self) -> float:
        """The next of this request's random numbers, in [0, 1)."""
        return self._random.random()

    def say(self, token: int) -> None:
        """The token was chosen and counts for the penalties from now on."""
        self._said[token] += 1

    def adjust(self, logits: Tensor) -> Tensor:
        """A row (vocabulary,) with penalties, bias and mask applied; the row itself is not written to."""
        if self.plain:
            return logits
        logits, s = logits.clone(), self.sampling
        if s.repetition_penalty != 1.0:
            ids = _ids(self._prompt | set(self._said), logits)
            scores = logits[ids]
            logits[ids] = torch.where(scores < 0, scores * s.repetition_penalty, scores / s.repetition_penalty)
        if self._said and (s.presence_penalty or s.frequency_penalty):
            counts = torch.tensor(list(self._said.values()), dtype=logits.dtype, device=logits.device)
            logits[_ids(self._said, logits)] -= s.presence_penalty + s.frequency_penalty * counts
        if s.logit_bias:
            bias = torch.tensor(list(s.logit_bias.values()), dtype=logits.dtype, device=logits.device)
            logits[_ids(s.logit_bias, logits)] += bias
        if self._early:
            logits[_ids(self._stops, logits)] = float("-inf")
        allowed = self.mask() if self.mask else None
        return logits if allowed is None else logits.masked_fill(~allowed, float("-inf"))


def choose(logits: Tensor, dice: Sequence[Dice]) -> list[int | None]:
    """One token per row of (rows, vocabulary); None where the row holds no usable number."""
    tokens: list[int | None] = [None] * len(dice)
    sound = logits.amax(-1).isfinite().tolist()
    greedy = [row for row, die in enumerate(dice) if sound[row] and die.plain and die.sampling.temperature <= COLDEST]
    if greedy:
        for row, token in zip(greedy, logits[greedy].argmax(-1).tolist(), strict=True):
            tokens[row] = token
    for row in set(range(len(dice))).difference(greedy):
        if sound[row]:
            tokens[row] = _draw(dice[row].adjust(logits[row]), dice[row])
    for die, token in zip(dice, tokens, strict=True):
        if token is not None:
            die.say(token)
    return tokens


def _draw(logits: Tensor, dice: Dice) -> int | None:
    """One token from an adjusted row; None if nothing is allowed."""
    if not bool(logits.max() > float("-inf")):
        return None
    if dice.sampling.temperature <= COLDEST:
        return int(logits.argmax())
    weights, ids = _filtered(logits / dice.sampling.temperature, dice.sampling)
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    place = int(torch.searchsorted(cumulated, cumulated[-1] * dice.uniform(), right=True))
    if place >= len(weights):  # rounding at the far end: the last token that has any weight
        place = int(weights.nonzero()[-1])
    return place if ids is None else int(ids[place])


def _filtered(logits: Tensor, s: Sampling) -> tuple[Tensor, Tensor | None]:
    """Weights (not normalised) of the tokens that pass top_k, top_p and min_p, and their ids; None: all, in order."""
    ids: Tensor | None = None
    if 0 < s.top_k < logits.shape[0]:
        logits, ids = logits.topk(s.top_k)
    weights = logits.softmax(-1)
    if s.top_p < 1.0:
        weights, order = _nucleus(weights, s.top_p)
        ids = order if ids is None else ids[order]
    if s.min_p > 0.0:
        weights = weights.where(weights >= s.min_p * weights.max(), 0.0)
    return weights, ids


def _nucleus(weights: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest of the likeliest tokens that together hold ``top_p`` of the mass, likeliest first, and their ids."""
    size = len(weights)
    for head in (min(HEAD, size), size):
        top, order = weights.topk(head)
        before = top.cumsum(-1, dtype=torch.float64) - top
        kept = max(1, int((before < top_p).sum()))
        if kept < head or head == size:
            break
    return top[:kept], order[:kept]


def logprobs_of(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """For each row of (rows, vocabulary) the log-probability of its token and of the ``top`` likeliest ones."""
    table = logits.log_softmax(-1)
    chosen = table.gather(-1, torch.tensor(tokens, device=table.device)[:, None])[:, 0].tolist()
    if top <= 0:
        return [TokenLogprob(token, value) for token, value in zip(tokens, chosen, strict=True)]
    values, ids = table.topk(min(top, table.shape[-1]))
    ranked = zip(ids.tolist(), values.tolist(), strict=True)
    return [
        TokenLogprob(token, value, tuple(zip(*row, strict=True)))
        for token, value, row in zip(tokens, chosen, ranked, strict=True)
    ]


def _ids(ids: "set[int] | frozenset[int] | dict[int, float] | Counter[int]", like: Tensor) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=like.device)
