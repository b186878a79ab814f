"""The number of prompt tokens per step in chunked prefill, bounded in time so that long prompts do not stall decoding.

A step is expected to take the time of decoding alone plus a cost per prompt token. Both are measured from the durations
that the caller passes to `PrefillBudget.record_step`; this module has no clock.

Part of the cost may not depend on the number of tokens: reading a long past, or on a GPU a step that is not replayed
from a graph. Then prompts run in blocks, in fewer steps, whose size doubles while that costs little.
"""

from collections import defaultdict, deque
from statistics import median

MAX_STEP_SLOWDOWN = 1.6
"""Duration that a step with prompts may have, relative to a decode-only step, if few sequences are in prefill."""

BLOCK_COST_FRACTION = 0.8
"""Cost of a block, relative to a decode-only step, above which it counts as doubling the step: most steps get none."""

DISPROVED_FRACTION = 0.9
"""Fraction of the decode-only estimate: if a step with prompts takes less than that, the estimate is discarded."""

PREFILL_WEIGHT = 2
"""Weight of a sequence in prefill relative to one in decode, whose client already has text to read."""

MIN_PREFILL_TOKENS = 8
"""Prompt tokens that are always affordable, however slow a step is, so that every prompt completes."""

MIN_BLOCK_TOKENS = 2 * MIN_PREFILL_TOKENS
"""Size of the first block that is tried."""

MAX_COSTLY_BLOCK_TOKENS = 4 * MIN_PREFILL_TOKENS
"""Size above which a block must cost little more than one of half the size."""

MAX_BLOCK_STEPS = 4
"""Largest cost of a block, in decode-only steps, unless it costs little more than one of half the size."""

MAX_BLOCK_SLOWDOWN = 1.25
"""Largest cost of a block relative to one of half the size that counts as little more."""

OUTDATED_FRACTION = 0.7
"""Fraction of the cost of a block of half the size: if a block costs less, the costs belong to other prompts."""

BLOCK_WINDOW_STEPS = 3
"""Number of the latest steps of about the same number of prompt tokens from which their cost is estimated."""

DECODE_WINDOW_STEPS = 12
"""Number of the latest decode-only steps from which the decode-only time is estimated."""

REMEASURE_PREFILL_AFTER_STEPS = 32
"""Steps with prompts after which two decode-only steps in a row measure decoding again; the first only warms up."""


class PrefillBudget:
    """Chooses the prompt tokens of each step.

    `max_batched_tokens` limits the tokens of a step, decoded ones included. Prompts are split at multiples of
    `alignment` tokens.
    """

    def __init__(self, max_batched_tokens: int, alignment: int = 1) -> None:
        self.alignment = alignment
        self._max_batched_tokens = max_batched_tokens
        self._saved_tokens = 0.0
        self._decode_seconds: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=DECODE_WINDOW_STEPS))
        self._seconds_per_token: deque[float] = deque(maxlen=8)
        self._seconds_per_token_alone: float | None = None
        self._recent_chunks: deque[int] = deque([MIN_PREFILL_TOKENS], maxlen=8)
        self._mixed_steps = 0
        self._last_was_decode_only = True
        self._extra_seconds: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=BLOCK_WINDOW_STEPS))
        self._block_tokens = 0

    def next_budget(self, decoding: int, waiting: int) -> int:
        """Prompt tokens for the next step, while `decoding` sequences decode and `waiting` are in prefill.

        Prompts may extend a decode-only step by 60 % (`MAX_STEP_SLOWDOWN`) or, if many sequences are in prefill,
        by `PREFILL_WEIGHT` · `waiting` / `decoding` times its duration.

        Example: a step of 4 decoding sequences takes 20 ms, a prompt token adds 0.1 ms. With one sequence in prefill,
        a step may take max(0.6, 2 · 1/4) · 20 = 12 ms longer: the budget is 120 tokens. With four in prefill it may
        take max(0.6, 2 · 4/4) · 20 = 40 ms longer: 400 tokens.

        0 means: measure decoding first, or save up for a block that would make this step too long. A budget above 0
        is at least one block (`alignment` tokens, or `MIN_BLOCK_TOKENS` or more). Tokens beyond
        whole blocks are saved for the next step.
        """
        if not decoding:
            return max(self._max_batched_tokens, self.alignment)
        max_tokens = max(self._max_batched_tokens - decoding, 1)
        baseline = self.decode_seconds(decoding)
        if baseline is None or self._mixed_steps >= REMEASURE_PREFILL_AFTER_STEPS:
            return 0
        allowed = max(MAX_STEP_SLOWDOWN - 1, PREFILL_WEIGHT * waiting / decoding) * baseline
        cost = median(self._seconds_per_token) if self._seconds_per_token else self._seconds_per_token_alone
        affordable, block = self._affordable_tokens(allowed, cost, max_tokens), self.alignment
        if cost is not None and (allowed < baseline or allowed < cost * MIN_PREFILL_TOKENS or self._block_tokens):
            block = self._choose_block(allowed, cost, baseline, max_tokens)
            is_costly = block > MIN_PREFILL_TOKENS and cost * block > BLOCK_COST_FRACTION * baseline
            if allowed < baseline and (block > self.alignment or is_costly):
                affordable = min(affordable, (block - 1) / 2)  # so that most steps have no block
        max_saved = block if block > self.alignment else affordable + block - 1
        self._saved_tokens = min(self._saved_tokens + affordable, max_saved, max(max_tokens, block))
        return int(self._saved_tokens) if self._saved_tokens >= block else 0

    def _affordable_tokens(self, allowed: float, cost: float | None, max_tokens: int) -> float:
        """Prompt tokens that fit into `allowed` seconds at the measured cost; at least `MIN_PREFILL_TOKENS`."""
        if cost is None:
            return min(MIN_PREFILL_TOKENS, max_tokens)
        extrapolation_limit = 2 * max(self._recent_chunks)  # costs are trusted up to twice the measured size
        affordable = int(allowed / cost) if allowed < cost * extrapolation_limit else extrapolation_limit
        return min(max(affordable, MIN_PREFILL_TOKENS), max_tokens)

    def _choose_block(self, allowed: float, cost: float, baseline: float, max_tokens: int) -> int:
        """Block size in tokens, if prompts may take `allowed` seconds of a step and a token takes `cost` seconds.

        If even `MIN_PREFILL_TOKENS` exceed `allowed`, most of the cost may be the same for many tokens as for few:
        larger blocks are used in fewer steps, until such a block fits into every step.
        Example: decoding takes 10 ms, a prompt token 1 ms. 8 tokens would exceed the 6 ms allowed, so every fourth step
        gets a block of 32. On a GPU, a step with prompts takes 25 ms more, whatever their number: the block doubles to
        512 tokens and more.
        """
        if self.alignment > MIN_PREFILL_TOKENS:
            return self.alignment
        smaller, extra = self._extra_of(self._block_tokens // 2), self._extra_of(self._block_tokens)
        is_outdated = smaller is not None and extra is not None and extra < OUTDATED_FRACTION * smaller
        if allowed >= cost * (self._block_tokens or MIN_PREFILL_TOKENS) or (self._block_tokens and is_outdated):
            self._block_tokens = 0
            self._extra_seconds.clear()
            return self.alignment
        block = self._block_tokens or self._choose_first_block(allowed, cost, baseline)
        self._block_tokens = min(self._fit_block(block, baseline), max_tokens)
        return self._block_tokens if self._block_tokens > MIN_PREFILL_TOKENS else self.alignment

    def _choose_first_block(self, allowed: float, cost: float, baseline: float) -> int:
        """Returns the smallest block if it may be used, or if only trying can tell what it costs."""
        smallest = self._extra_of(MIN_PREFILL_TOKENS)
        is_measured = smallest is not None and smallest > allowed
        return MIN_BLOCK_TOKENS if is_measured or cost * MIN_BLOCK_TOKENS < MAX_BLOCK_STEPS * baseline else 0

    def _fit_block(self, block: int, baseline: float) -> int:
        """Returns a block of this size, of half if it costs too much, or of twice the size if that costs little."""
        smaller, extra = self._extra_of(block // 2), self._extra_of(block)
        if extra is None:
            return block
        second_half = extra if smaller is None else min(2 * max(extra - smaller, 0.0), extra)
        doubled = extra + second_half
        if smaller is not None and extra > max(MAX_BLOCK_SLOWDOWN * smaller, MAX_BLOCK_STEPS * baseline):
            return block // 2
        is_cheap = smaller is not None and doubled <= MAX_BLOCK_SLOWDOWN * extra
        is_bearable = 2 * block <= MAX_COSTLY_BLOCK_TOKENS and doubled < MAX_BLOCK_STEPS * baseline
        return 2 * block if is_cheap or is_bearable else block

    def _extra_of(self, tokens: int) -> float | None:
        """Returns the estimated seconds that a chunk of this size adds to a step; None if none was measured."""
        samples = self._extra_seconds.get(tokens.bit_length())
        return median(samples) if samples else None

    def decode_seconds(self, decoding: int) -> float | None:
        """Estimated seconds of a decode-only step of `decoding` sequences; None if none was measured yet.

        The first quartile of the latest steps, since all steps are slower while the server tokenizes a long prompt.
        """
        samples = self._decode_seconds.get(_batch_class(decoding))
        return sorted(samples)[len(samples) // 4] if samples else None

    def record_step(self, decoding: int, prompts: int, seconds: float) -> None:
        """Records the duration of a step with `decoding` decoded tokens and `prompts` prompt tokens."""
        self._saved_tokens = max(self._saved_tokens - prompts, 0)
        after_decode_only, self._last_was_decode_only = self._last_was_decode_only, not prompts
        if not prompts:
            samples = self._decode_seconds[_batch_class(decoding)]
            if after_decode_only or not samples:  # a step right after a prompt runs with cold CPU caches
                self._mixed_steps = 0
                samples.append(seconds)
            return
        if not decoding:
            self._mixed_steps = 0
            self._seconds_per_token_alone = seconds / prompts
            self._recent_chunks.append(max(prompts, MIN_PREFILL_TOKENS))
            return
        self._mixed_steps += 1
        self._recent_chunks.append(max(prompts, MIN_PREFILL_TOKENS))
        baseline = self.decode_seconds(decoding)
        if (
            baseline is not None and seconds < DISPROVED_FRACTION * baseline
        ):  # then decoding alone does not take so long, or not any more
            self._decode_seconds[_batch_class(decoding)].clear()
        elif baseline is not None:
            extra = max(seconds - baseline, 0.0)
            self._seconds_per_token.append(extra / prompts)
            self._extra_seconds[prompts.bit_length()].append(extra)


def _batch_class(decoding: int) -> int:
    """Key under which decode times are measured: batch sizes within a factor of two share one."""
    return decoding.bit_length()
