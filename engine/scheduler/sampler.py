"""From rows of logits to tokens: penalties, bias, masks, filters, one uniform number per token, log-probabilities.

It knows no models and no schedules. Each row is sampled with its own random numbers, in its own order, so that what a
request gets never depends on who else is running: rows are taken together only where each is treated as it would be
alone. The order of treatment is transformers': repetition penalty, presence and frequency penalties, bias, mask, then
temperature, top_k, top_p, min_p.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from antiphon.engine.kernels.bindings import SOFTMAX_BLOCK, Kernels
from antiphon.engine.protocol import Sampling, TokenLogprob

TOP_P_CANDIDATES = 1024
"""top_p first looks only at this many of the likeliest tokens; if they do not hold enough mass, at all of them."""

ROWS_PER_DRAW = 8
"""Rows that are drawn from at once on a CPU: more would leave its caches between one operation and the next."""

GREEDY, FULL_VOCABULARY = 1, 0

GREEDY_TEMPERATURE = 1e-5
"""At this temperature and below the likeliest token is taken; dividing by less would overflow."""


class LogitsMask(Protocol):
    """A grammar's word on one answer."""

    def next_mask(self) -> Tensor | None:
        """Which tokens may come next: bool, (vocabulary,); None allows everything."""
        ...

    def advance(self, token: int) -> None:
        """This token was chosen."""
        ...


class SamplingState:
    """The state of one request's choices: its random numbers, what it has said, what it may say.

    ``prompt`` counts for the repetition penalty only. ``stops`` are forbidden for the first ``min_tokens`` tokens.
    """

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], stop_ids: frozenset[int], grammar: LogitsMask | None = None
    ) -> None:
        self.sampling = sampling
        self.grammar = grammar
        seed = None if sampling.seed is None else sampling.seed & 0xFFFF_FFFF_FFFF_FFFF  # -1 must not equal 1
        self._random = random.Random(seed)  # noqa: S311  dice, not keys
        self._prompt_ids = set(prompt) if sampling.repetition_penalty != 1.0 else set()
        self._generated_counts: Counter[int] = Counter()
        self._num_generated = 0
        self._stop_ids = stop_ids

    @property
    def uses_raw_logits(self) -> bool:
        """Whether the logits are taken as they are."""
        s = self.sampling
        penalised = s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1.0
        return not (penalised or s.logit_bias or self.grammar or (self._stop_ids and self._below_min_tokens))

    @property
    def _below_min_tokens(self) -> bool:
        return self._num_generated < self.sampling.min_tokens

    def next_uniform(self) -> float:
        """The next of this request's random numbers, in [0, 1)."""
        return self._random.random()

    def record_token(self, token: int) -> None:
        """The token was chosen and counts for the penalties from now on."""
        self._generated_counts[token] += 1
        self._num_generated += 1
        if self.grammar is not None:
            self.grammar.advance(token)

    def adjust_logits(self, logits: Tensor) -> Tensor:
        """A row (vocabulary,) with penalties, bias and mask applied; the row itself is not written to."""
        if self.uses_raw_logits:
            return logits
        logits, s = logits.clone(), self.sampling
        if s.repetition_penalty != 1.0:
            ids = _id_tensor(self._prompt_ids | set(self._generated_counts), logits)
            scores = logits[ids]
            logits[ids] = torch.where(scores < 0, scores * s.repetition_penalty, scores / s.repetition_penalty)
        if self._generated_counts and (s.presence_penalty or s.frequency_penalty):
            counts = torch.tensor(list(self._generated_counts.values()), dtype=logits.dtype, device=logits.device)
            logits[_id_tensor(self._generated_counts, logits)] -= s.presence_penalty + s.frequency_penalty * counts
        if s.logit_bias:
            bias = torch.tensor(list(s.logit_bias.values()), dtype=logits.dtype, device=logits.device)
            logits[_id_tensor(s.logit_bias, logits)] += bias
        if self._below_min_tokens:
            logits[_id_tensor(self._stop_ids, logits)] = float("-inf")
        allowed = self.grammar.next_mask() if self.grammar else None
        return logits if allowed is None else logits.masked_fill_(~allowed.to(logits.device), float("-inf"))


def sample_tokens(logits: Tensor, states: Sequence[SamplingState], kernels: Kernels | None = None) -> list[int | None]:
    """One token per row of (rows, vocabulary); None where the row holds no usable number.

    ``kernels`` draw from the whole vocabulary in one pass over it.
    """
    tokens: list[int | None] = [None] * len(states)
    groups: dict[int, list[int]] = {}
    for row, die in enumerate(states):
        groups.setdefault(_candidate_count(die.sampling, logits.shape[1]), []).append(row)
    at_once = ROWS_PER_DRAW if logits.device.type == "cpu" else len(states)
    for kind, members in groups.items():
        for begin in range(0, len(members), at_once):
            rows = members[begin : begin + at_once]
            chosen = _draw_rows(_adjust_rows(logits, states, rows), [states[row] for row in rows], kind, kernels)
            for row, token in zip(rows, chosen, strict=True):
                tokens[row] = token
    for die, token in zip(states, tokens, strict=True):
        if token is not None:
            die.record_token(token)
    return tokens


def _candidate_count(s: Sampling, vocabulary: int) -> int:
    """What a row is drawn from: GREEDY, EVERYTHING, or this many of the likeliest tokens, at first."""
    if s.temperature <= GREEDY_TEMPERATURE or s.top_k == 1:
        return GREEDY
    if 0 < s.top_k < vocabulary:
        return s.top_k
    return FULL_VOCABULARY if s.top_p >= 1.0 and s.min_p <= 0.0 else min(TOP_P_CANDIDATES, vocabulary)


def _adjust_rows(logits: Tensor, dice: Sequence[SamplingState], rows: list[int]) -> Tensor:
    """These rows with their penalties, bias and masks; a row without usable numbers gets none by a mask."""
    if not all(dice[row].uses_raw_logits for row in rows):
        sound = logits[rows].amax(-1).isfinite().tolist()
        return torch.stack(
            [
                dice[row].adjust_logits(logits[row]) if good else logits[row]
                for row, good in zip(rows, sound, strict=True)
            ]
        )
    return logits[rows[0] : rows[-1] + 1] if rows[-1] - rows[0] == len(rows) - 1 else logits[rows]


def _draw_rows(logits: Tensor, dice: list[SamplingState], kind: int, kernels: Kernels | None) -> list[int | None]:
    """One token for each of the rows, all of one kind."""
    if kind == GREEDY:
        values, ids = top_tokens(logits, 1)
        found = zip(ids[:, 0].tolist(), values[:, 0].isfinite().tolist(), strict=True)
        return [token if sound else None for token, sound in found]
    chances = torch.tensor([die.next_uniform() for die in dice], dtype=torch.float64, device=logits.device)[:, None]
    if kind == FULL_VOCABULARY and kernels is not None:
        return _draw_with_kernels(logits, dice, chances, kernels)
    if kind == FULL_VOCABULARY:
        return _draw_from_vocabulary(_apply_temperature(logits, dice).softmax(-1), chances)
    return _draw_from_candidates(logits, dice, chances, kind)


def _draw_with_kernels(
    logits: Tensor, dice: list[SamplingState], chances: Tensor, kernels: Kernels
) -> list[int | None]:
    """As :func:`_from_all`, of logits; what does not lie in the block is weighed once and never written down."""
    by = 1 / _parameter_column(dice, "temperature", logits)
    sums, largest = kernels.block_softmax_sums(logits, by)
    return _draw_in_block(sums, chances, logits, lambda scores: ((scores - largest) * by).exp())


def _draw_from_vocabulary(weights: Tensor, chances: Tensor) -> list[int | None]:
    """Inverse CDF over (rows, vocabulary) in two levels: the block in which the chance falls, then the place in it."""
    size = weights.shape[1]
    whole = size - size % SOFTMAX_BLOCK
    sums = weights[:, :whole].view(len(weights), -1, SOFTMAX_BLOCK).sum(-1)
    if whole < size:
        sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], 1)
    return _draw_in_block(sums, chances, weights, lambda found: found)


def _draw_in_block(
    sums: Tensor, chances: Tensor, values: Tensor, weigh: Callable[[Tensor], Tensor]
) -> list[int | None]:
    """The block in which the chance falls, by ``sums``, then the place in it, by what ``weigh`` makes of its values."""
    size = values.shape[1]
    block, rest, total = _locate_chance(sums, chances)
    ids = block * SOFTMAX_BLOCK + torch.arange(SOFTMAX_BLOCK, device=values.device)
    within = weigh(values.gather(1, ids.clamp_max(size - 1))).masked_fill_(ids >= size, 0.0)
    place, _, inner = _locate_chance(within, rest)
    sound = (total.isfinite() & (total > 0) & (inner > 0))[:, 0].tolist()
    found = (block * SOFTMAX_BLOCK + place)[:, 0].tolist()
    return [token if good else None for token, good in zip(found, sound, strict=True)]


def _locate_chance(weights: Tensor, chances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where in each row (rows, n) its chance (rows, 1) falls, how far into that place in [0, 1], and the row's sum.

    A place of weight 0 is never taken, not even where rounding runs past the end.
    """
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    total = cumulated[:, -1:].contiguous()
    last = torch.searchsorted(cumulated, total)  # the first place that reaches the sum: the last with any weight
    target = total * chances
    place = torch.searchsorted(cumulated, target, right=True).minimum(last).clamp_max(weights.shape[1] - 1)
    weight = weights.gather(1, place).double()
    before = cumulated.gather(1, place) - weight
    return place, ((target - before) / weight).clamp(0.0, 1.0 - 2**-53), total


def _draw_from_candidates(logits: Tensor, dice: list[SamplingState], chances: Tensor, size: int) -> list[int | None]:
    """Inverse CDF over the tokens that pass top_k, top_p and min_p, looked for among the ``size`` likeliest."""
    values, ids = top_tokens(logits, size)
    scaled = _apply_temperature(values, dice)
    limited = torch.tensor([0 < die.sampling.top_k < logits.shape[1] for die in dice], device=logits.device)[:, None]
    over = scaled.logsumexp(-1, keepdim=True)
    if not bool(limited.all()):
        over = torch.where(limited, over, _apply_temperature(logits, dice).logsumexp(-1, keepdim=True))
    weights = (scaled - over).exp()
    kept, held = _apply_top_p_min_p(weights, dice)
    sound = (values[:, 0].isfinite() & over[:, 0].isfinite()).tolist()
    enough = (limited | held)[:, 0].tolist() if size < logits.shape[1] else [True] * len(dice)
    place, _, _ = _locate_chance(weights.masked_fill(~kept, 0.0), chances)
    found: list[int | None] = ids.gather(1, place)[:, 0].tolist()
    for row, good in enumerate(sound):
        if not good:
            found[row] = None
        elif not enough[row]:
            one = slice(row, row + 1)
            found[row] = _draw_from_candidates(logits[one], dice[one], chances[one], logits.shape[1])[0]
    return found


def _apply_top_p_min_p(weights: Tensor, dice: list[SamplingState]) -> tuple[Tensor, Tensor]:
    """Which of the sorted weights (rows, n) pass top_p and min_p, and (rows, 1) whether nothing after them can.

    A token passes top_p if those before it hold less than that; so the likeliest always passes.
    """
    top_p, min_p = (_parameter_column(dice, name, weights) for name in ("top_p", "min_p"))
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    least = min_p * weights[:, :1]
    free = top_p >= 1.0
    kept = (free | (cumulated - weights < top_p)) & (weights >= least)
    kept[:, 0] = True
    return kept, (~free & (cumulated[:, -1:] >= top_p)) | (weights[:, -1:] < least)


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row (rows, vocabulary), largest first, and their ids: exact, in two levels.

    A token among the largest is in one of the ``count`` blocks with the largest maxima: were it in another, each of
    those would hold a larger one.
    """
    size = logits.shape[1]
    block = min(SOFTMAX_BLOCK, size // (4 * count))
    if block < 4 or logits.device.type != "cpu":
        return logits.topk(count)
    whole = size - size % block
    maxima = logits[:, :whole].reshape(len(logits), -1, block).amax(-1)
    if whole < size:
        maxima = torch.cat([maxima, logits[:, whole:].amax(-1, keepdim=True)], 1)
    blocks = maxima.topk(count).indices.sort().values  # in order, so that of equals the first is found first
    ids = (blocks[:, :, None] * block + torch.arange(block)).flatten(1)
    candidates = logits.gather(1, ids.clamp_max(size - 1)).masked_fill_(ids >= size, float("-inf"))
    values, places = candidates.topk(count)
    return values, ids.gather(1, places)


def compute_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """For each row of (rows, vocabulary) the log-probability of its token and of the ``top`` likeliest ones."""
    over = logits.logsumexp(-1, keepdim=True)
    chosen = (logits.gather(-1, torch.tensor(tokens, device=logits.device)[:, None]) - over)[:, 0].tolist()
    if top <= 0:
        return [TokenLogprob(token, value) for token, value in zip(tokens, chosen, strict=True)]
    values, ids = top_tokens(logits, min(top, logits.shape[-1]))
    ranked = zip(ids.tolist(), (values - over).tolist(), strict=True)
    return [
        TokenLogprob(token, value, tuple(zip(*row, strict=True)))
        for token, value, row in zip(tokens, chosen, ranked, strict=True)
    ]


def _apply_temperature(logits: Tensor, dice: list[SamplingState]) -> Tensor:
    """(rows, n), each divided by its temperature; where that is 1 for all, as they are."""
    if all(die.sampling.temperature == 1.0 for die in dice):
        return logits
    return logits / _parameter_column(dice, "temperature", logits)


def _parameter_column(dice: list[SamplingState], name: str, like: Tensor) -> Tensor:
    """One parameter of every row, (rows, 1)."""
    values = [getattr(die.sampling, name) for die in dice]
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _id_tensor(ids: "set[int] | frozenset[int] | dict[int, float] | Counter[int]", like: Tensor) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=like.device)
