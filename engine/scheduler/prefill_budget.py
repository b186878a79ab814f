"""How many tokens of prompts a step may carry: bounded in time, so that a long prompt slows nobody down too much.

A step's time is taken to be that of decoding alone plus a cost for each token of a prompt; both are measured. It knows
no clock: it is told how long each step took.
"""

from collections import defaultdict, deque
from statistics import median

MAX_STEP_SLOWDOWN = 1.6
"""A step with prompts may take so many times what decoding alone takes, if few wait."""

BLOCK_COST_FRACTION = 0.8
"""A block of a prompt that takes so much of a step's time may double it."""

DISPROVED_FRACTION = 0.9
"""A step with prompts that takes less than such a part of what decoding alone is thought to take proves that wrong."""

PREFILL_WEIGHT = 2
"""Who waits for a first token counts as so many who wait for the next one: those have something to read."""

MIN_PREFILL_TOKENS = 8
"""Tokens of prompts that a step may carry however slow it is, so that a prompt is done in the end."""

BLOCK_SIZES_TOKENS = (4 * MIN_PREFILL_TOKENS, 2 * MIN_PREFILL_TOKENS)
"""So many tokens come at once where fewer in every step would take too long, ..."""

MAX_BLOCK_STEPS = 4
"""... if they do not take longer than so many steps."""

DECODE_WINDOW_STEPS = 12
"""Steps that decoding alone is measured by."""

REMEASURE_AFTER_STEPS = 32
"""After so many steps with prompts, two in a row without them measure decoding again."""


class PrefillBudget:
    """``chunk``: tokens of one step at most, whoever they belong to. Prompts come in blocks of ``grain`` tokens."""

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
        self._use_blocks = False

    def next_budget(self, decoding: int, waiting: int) -> int:
        """Tokens of prompts for the next step, while so many sequences decode and so many wait for their first token.

        Where many wait, prompts take :data:`FIRST` times as much for each of them as decoding takes for each that
        decodes. 0: measure decoding first, or save up for a block of ``grain``, which would make this step too long;
        what is not 0 is enough for one. What is left of whole blocks is kept for the next step.
        """
        if not decoding:
            return max(self._max_batched_tokens, self.alignment)
        most = max(self._max_batched_tokens - decoding, 1)
        plain = self.decode_seconds(decoding)
        if plain is None or self._mixed_steps >= REMEASURE_AFTER_STEPS:
            return 0
        allowed = max(MAX_STEP_SLOWDOWN - 1, PREFILL_WEIGHT * waiting / decoding) * plain
        cost = median(self._seconds_per_token) if self._seconds_per_token else self._seconds_per_token_alone
        wanted, block = self._affordable_tokens(allowed, cost, most), self.alignment
        if cost is not None and allowed < plain:
            block = self._choose_block(allowed, cost, plain)
            if block > self.alignment or (block > MIN_PREFILL_TOKENS and cost * block > BLOCK_COST_FRACTION * plain):
                wanted = min(wanted, (block - 1) / 2)  # so that most steps have no block
        kept = block if block > self.alignment else wanted + block - 1
        self._saved_tokens = min(self._saved_tokens + wanted, kept, max(most, block))
        return int(self._saved_tokens) if self._saved_tokens >= block else 0

    def _affordable_tokens(self, allowed: float, cost: float | None, most: int) -> float:
        """How many tokens fit into ``allowed`` seconds, as far as is known; at least :data:`FLOOR`."""
        if cost is None:
            return min(MIN_PREFILL_TOKENS, most)
        further = 2 * max(self._recent_chunks)  # what was measured lately says something about twice as much
        fitting = int(allowed / cost) if allowed < cost * further else further
        return min(max(fitting, MIN_PREFILL_TOKENS), most)

    def _choose_block(self, allowed: float, cost: float, plain: float) -> int:
        """How many tokens come at once, while a step may take ``allowed`` longer, and a token takes ``cost``.

        Where :data:`FLOOR` of them take longer, it is mostly their past that is read, and it is read for many as for
        few: more of them come, and seldom, until so many would do no harm in every step.
        """
        if self.alignment > MIN_PREFILL_TOKENS:
            return self.alignment
        block = next((size for size in BLOCK_SIZES_TOKENS if cost * size < MAX_BLOCK_STEPS * plain), 0)
        self._use_blocks = allowed < cost * (block if self._use_blocks else MIN_PREFILL_TOKENS)
        return block if self._use_blocks and block else self.alignment

    def decode_seconds(self, decoding: int) -> float | None:
        """Seconds of a step in which so many sequences decode and nothing else happens; None: not measured yet.

        Of the latest steps a quarter was faster: while a long prompt is cut into tokens, all steps are slower.
        """
        measured = self._decode_seconds.get(_batch_class(decoding))
        return sorted(measured)[len(measured) // 4] if measured else None

    def record_step(self, decoding: int, prompts: int, seconds: float) -> None:
        """A step with one token of each of ``decoding`` sequences and ``prompts`` tokens of prompts took so long."""
        self._saved_tokens = max(self._saved_tokens - prompts, 0)
        clean, self._last_was_decode_only = self._last_was_decode_only, not prompts
        if not prompts:
            measured = self._decode_seconds[_batch_class(decoding)]
            if clean or not measured:  # right after a prompt caches are cold, which is the prompt's doing
                self._mixed_steps = 0
                measured.append(seconds)
            return
        if not decoding:
            self._mixed_steps = 0
            self._seconds_per_token_alone = seconds / prompts
            self._recent_chunks.append(max(prompts, MIN_PREFILL_TOKENS))
            return
        self._mixed_steps += 1
        self._recent_chunks.append(max(prompts, MIN_PREFILL_TOKENS))
        plain = self.decode_seconds(decoding)
        if (
            plain is not None and seconds < DISPROVED_FRACTION * plain
        ):  # then decoding alone does not take so long, or not any more
            self._decode_seconds[_batch_class(decoding)].clear()
        elif plain is not None:
            self._seconds_per_token.append(max(seconds - plain, 0.0) / prompts)


def _batch_class(decoding: int) -> int:
    """Numbers of sequences are alike within a factor of two."""
    return decoding.bit_length()
