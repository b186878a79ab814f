"""Sampling of tokens from logits: penalties, bias, masks, filters, one random number per token.

This module knows no models and no schedules. Each row uses the random numbers of its own request, in order, so that a
request's tokens never depend on the rest of the batch: rows are processed together only if each gets the same result
as alone. The order of operations is transformers': repetition penalty, presence and frequency penalties, bias, mask,
then temperature, top_k, top_p, min_p.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from antiphon.engine.kernels.bindings import SOFTMAX_BLOCK, Kernels
from antiphon.engine.protocol import Sampling
from antiphon.engine.scheduler.grammar import GrammarMatcher

TOP_P_CANDIDATES = 1024
"""Number of most likely tokens that top_p and min_p examine first; all tokens if these do not decide the result."""

ROWS_PER_DRAW = 8
"""Number of rows sampled at once on a CPU. More would leave the CPU caches between one operation and the next."""

GREEDY, FULL_VOCABULARY = 1, 0
"""Special numbers of candidates; see `_candidate_count`."""

GREEDY_TEMPERATURE = 1e-5
"""Temperature up to which sampling is greedy; dividing by a smaller one would overflow."""


class SamplingState:
    """Sampling state of one request: its random numbers, the counts of its tokens, its grammar.

    `prompt` counts for the repetition penalty only. `stop_ids` are forbidden for the first `min_tokens` tokens, and
    those among `ignored_ids` always; both are allowed where a grammar allows nothing else.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        stop_ids: frozenset[int],
        grammar: GrammarMatcher | None = None,
        ignored_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.sampling = sampling
        self.grammar = grammar
        seed = None if sampling.seed is None else sampling.seed & 0xFFFF_FFFF_FFFF_FFFF  # -1 must not equal 1
        self._random = random.Random(seed)  # noqa: S311  samples tokens, not keys
        self._prompt_ids = set(prompt) if sampling.repetition_penalty != 1.0 else set()
        self._generated_counts: Counter[int] = Counter()
        self._num_generated = 0
        self._stop_ids, self._ignored_ids = stop_ids, ignored_ids

    @property
    def uses_raw_logits(self) -> bool:
        """True if the next token is sampled from the logits without penalties, bias or mask."""
        s = self.sampling
        penalised = s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1.0
        return not (penalised or s.logit_bias or self.grammar or self._withheld_ids)

    @property
    def is_greedy(self) -> bool:
        """True if no random number is drawn."""
        return self.sampling.temperature <= GREEDY_TEMPERATURE or self.sampling.top_k == 1

    @property
    def _withheld_ids(self) -> frozenset[int]:
        """Stop tokens that must not come next."""
        return self._stop_ids if self._num_generated < self.sampling.min_tokens else self._ignored_ids

    def next_uniform(self) -> float:
        """Returns the request's next random number, in [0, 1)."""
        return self._random.random()

    def record_token(self, token: int) -> None:
        """Counts a sampled token for the penalties and advances the grammar."""
        self._generated_counts[token] += 1
        self._num_generated += 1
        if self.grammar is not None:
            self.grammar.advance(token)

    def replay_tokens(self, tokens: Sequence[int]) -> None:
        """Brings the state to where an earlier run was that sampled these tokens."""
        if not self.is_greedy:
            for _ in tokens:
                self.next_uniform()
        for token in tokens:
            self.record_token(token)

    def adjust_logits(self, logits: Tensor) -> Tensor:
        """Applies penalties, bias and mask to a row (vocabulary,). Does not modify the row itself."""
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
        allowed = self.grammar.next_mask() if self.grammar else None
        if withheld_ids := self._withheld_ids:
            withheld = _id_tensor(withheld_ids, logits)
            if allowed is None or int(allowed.sum()) > int(allowed[withheld.to(allowed.device)].sum()):
                logits[withheld] = float("-inf")
        return logits if allowed is None else logits.masked_fill_(~allowed.to(logits.device), float("-inf"))


def sample_tokens(logits: Tensor, states: Sequence[SamplingState], kernels: Kernels | None = None) -> list[int | None]:
    """Samples one token per row of (rows, vocabulary); None for a row whose logits are not finite.

    `kernels` sample from the full vocabulary in one pass over the row.
    """
    tokens: list[int | None] = [None] * len(states)
    groups: dict[int, list[int]] = {}
    for row, state in enumerate(states):
        groups.setdefault(_candidate_count(state, logits.shape[1]), []).append(row)
    rows_per_draw = ROWS_PER_DRAW if logits.device.type == "cpu" else len(states)
    for candidates, members in groups.items():
        for start in range(0, len(members), rows_per_draw):
            rows = members[start : start + rows_per_draw]
            drawn_tokens = _draw_rows(
                _adjust_rows(logits, states, rows), [states[row] for row in rows], candidates, kernels
            )
            for row, token in zip(rows, drawn_tokens, strict=True):
                tokens[row] = token
    for state, token in zip(states, tokens, strict=True):
        if token is not None:
            state.record_token(token)
    return tokens


def _candidate_count(state: SamplingState, vocabulary: int) -> int:
    """Number of most likely tokens to examine first; or `GREEDY`, or `FULL_VOCABULARY`."""
    if state.is_greedy:
        return GREEDY
    s = state.sampling
    if 0 < s.top_k < vocabulary:
        return s.top_k
    return FULL_VOCABULARY if s.top_p >= 1.0 and s.min_p <= 0.0 else min(TOP_P_CANDIDATES, vocabulary)


def _adjust_rows(logits: Tensor, states: Sequence[SamplingState], rows: list[int]) -> Tensor:
    """Applies penalties, bias and masks to these rows, except to non-finite ones, which a mask could make finite."""
    if not all(states[row].uses_raw_logits for row in rows):
        is_finite = logits[rows].amax(-1).isfinite().tolist()
        return torch.stack(
            [
                states[row].adjust_logits(logits[row]) if finite else logits[row]
                for row, finite in zip(rows, is_finite, strict=True)
            ]
        )
    return logits[rows[0] : rows[-1] + 1] if rows[-1] - rows[0] == len(rows) - 1 else logits[rows]


def _draw_rows(logits: Tensor, states: list[SamplingState], kind: int, kernels: Kernels | None) -> list[int | None]:
    """Samples one token per row. `kind` is the `_candidate_count` of all rows."""
    if kind == GREEDY:
        values, ids = top_tokens(logits, 1)
        greedy = zip(ids[:, 0].tolist(), values[:, 0].isfinite().tolist(), strict=True)
        return [token if is_finite else None for token, is_finite in greedy]
    uniforms = torch.tensor([state.next_uniform() for state in states], dtype=torch.float64, device=logits.device)[
        :, None
    ]
    if kind == FULL_VOCABULARY and kernels is not None:
        return _draw_with_kernels(logits, states, uniforms, kernels)
    if kind == FULL_VOCABULARY:
        return _draw_from_vocabulary(_apply_temperature(logits, states).softmax(-1), uniforms)
    return _draw_from_candidates(logits, states, uniforms, kind)


def _draw_with_kernels(
    logits: Tensor, states: list[SamplingState], uniforms: Tensor, kernels: Kernels
) -> list[int | None]:
    """`_draw_from_vocabulary` with compiled kernels, from logits: only the weights of one block are stored."""
    inverse_temperature = 1 / _parameter_column(states, "temperature", logits)
    sums, maxima = kernels.block_softmax_sums(logits, inverse_temperature)
    return _draw_in_block(sums, uniforms, logits, lambda scores: ((scores - maxima) * inverse_temperature).exp())


def _draw_from_vocabulary(weights: Tensor, uniforms: Tensor) -> list[int | None]:
    """Inverse CDF over (rows, vocabulary) in two levels: first the block of the vocabulary, then the token in it."""
    size = weights.shape[1]
    full_size = size - size % SOFTMAX_BLOCK
    sums = weights[:, :full_size].view(len(weights), -1, SOFTMAX_BLOCK).sum(-1)
    if full_size < size:
        sums = torch.cat([sums, weights[:, full_size:].sum(-1, keepdim=True)], 1)
    return _draw_in_block(sums, uniforms, weights, lambda block_values: block_values)


def _draw_in_block(
    sums: Tensor, uniforms: Tensor, values: Tensor, weigh: Callable[[Tensor], Tensor]
) -> list[int | None]:
    """Finds the block of each row by the `sums` of the blocks, then the token by the weights of the block.

    `weigh` computes these weights from the block's part of `values`.
    """
    size = values.shape[1]
    block, offset, total = _locate_chance(sums, uniforms)
    ids = block * SOFTMAX_BLOCK + torch.arange(SOFTMAX_BLOCK, device=values.device)
    block_weights = weigh(values.gather(1, ids.clamp_max(size - 1))).masked_fill_(ids >= size, 0.0)
    index, _, block_total = _locate_chance(block_weights, offset)
    is_valid = (total.isfinite() & (total > 0) & (block_total > 0))[:, 0].tolist()
    tokens = (block * SOFTMAX_BLOCK + index)[:, 0].tolist()
    return [token if valid else None for token, valid in zip(tokens, is_valid, strict=True)]


def _locate_chance(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inverse CDF of each row (rows, n) at its number (rows, 1): the index, the offset within it, and the row's sum.

    The offset is in [0, 1). An index of weight 0 is never chosen, even if rounding exceeds the last one.

    Example: for weights [2, 0, 2] and the number 0.75 the target is 0.75 · 4 = 3, which is halfway into index 2, so the
    result is (2, 0.5, 4).
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:].contiguous()
    last = torch.searchsorted(cumulative, total)  # the first index that reaches the sum: the last with any weight
    target = total * uniforms
    index = torch.searchsorted(cumulative, target, right=True).minimum(last).clamp_max(weights.shape[1] - 1)
    weight = weights.gather(1, index).double()
    before = cumulative.gather(1, index) - weight
    return index, ((target - before) / weight).clamp(0.0, 1.0 - 2**-53), total


def _draw_from_candidates(logits: Tensor, states: list[SamplingState], uniforms: Tensor, size: int) -> list[int | None]:
    """Inverse CDF over the tokens that pass top_k, top_p and min_p, among the `size` most likely ones.

    A row for which these do not suffice is sampled from all tokens instead.
    """
    values, ids = top_tokens(logits, size)
    scaled = _apply_temperature(values, states)
    has_top_k = torch.tensor([0 < state.sampling.top_k < logits.shape[1] for state in states], device=logits.device)[
        :, None
    ]
    log_total = scaled.logsumexp(-1, keepdim=True)
    if not bool(has_top_k.all()):
        log_total = torch.where(has_top_k, log_total, _apply_temperature(logits, states).logsumexp(-1, keepdim=True))
    weights = (scaled - log_total).exp()
    passes, is_exhaustive = _apply_top_p_min_p(weights, states)
    is_valid = (values[:, 0].isfinite() & log_total[:, 0].isfinite()).tolist()
    is_sufficient = (has_top_k | is_exhaustive)[:, 0].tolist() if size < logits.shape[1] else [True] * len(states)
    index, _, _ = _locate_chance(weights.masked_fill(~passes, 0.0), uniforms)
    tokens: list[int | None] = ids.gather(1, index)[:, 0].tolist()
    for row, valid in enumerate(is_valid):
        if not valid:
            tokens[row] = None
        elif not is_sufficient[row]:
            single = slice(row, row + 1)
            tokens[row] = _draw_from_candidates(logits[single], states[single], uniforms[single], logits.shape[1])[0]
    return tokens


def _apply_top_p_min_p(weights: Tensor, states: list[SamplingState]) -> tuple[Tensor, Tensor]:
    """Tells which of the sorted weights (rows, n) pass top_p and min_p, and (rows, 1) whether no later one can.

    A token passes top_p if the sum of the weights before it is below top_p, so the most likely token always passes.
    """
    top_p, min_p = (_parameter_column(states, name, weights) for name in ("top_p", "min_p"))
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    min_weight = min_p * weights[:, :1]
    no_top_p = top_p >= 1.0
    passes = (no_top_p | (cumulative - weights < top_p)) & (weights >= min_weight)
    passes[:, 0] = True
    return passes, (~no_top_p & (cumulative[:, -1:] >= top_p)) | (weights[:, -1:] < min_weight)


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row (rows, vocabulary), in descending order, and their ids.

    Exact, in two levels: a token among the `count` largest is in one of the `count` blocks with the largest maxima.
    If it were in another block, each of those would hold a larger value.
    """
    size = logits.shape[1]
    block = min(SOFTMAX_BLOCK, size // (4 * count))
    if block < 4 or logits.device.type != "cpu":
        return logits.topk(count)
    full_size = size - size % block
    maxima = logits[:, :full_size].reshape(len(logits), -1, block).amax(-1)
    if full_size < size:
        maxima = torch.cat([maxima, logits[:, full_size:].amax(-1, keepdim=True)], 1)
    blocks = maxima.topk(count).indices.sort().values  # in order, so that the first of equal values wins
    ids = (blocks[:, :, None] * block + torch.arange(block)).flatten(1)
    candidates = logits.gather(1, ids.clamp_max(size - 1)).masked_fill_(ids >= size, float("-inf"))
    values, indices = candidates.topk(count)
    return values, ids.gather(1, indices)


def _apply_temperature(logits: Tensor, states: list[SamplingState]) -> Tensor:
    """Divides each row (rows, n) by its temperature. Returns the rows themselves if all temperatures are 1."""
    if all(state.sampling.temperature == 1.0 for state in states):
        return logits
    return logits / _parameter_column(states, "temperature", logits)


def _parameter_column(states: list[SamplingState], name: str, like: Tensor) -> Tensor:
    """A sampling parameter of every row, (rows, 1)."""
    values = [getattr(state.sampling, name) for state in states]
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _id_tensor(ids: "set[int] | frozenset[int] | dict[int, float] | Counter[int]", like: Tensor) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=like.device)
