"""N-gram drafts for speculative decoding: several next tokens, proposed from earlier text, verified in one step.

This module knows no model: tokens in, a draft out. A draft changes how many tokens a step generates, never which: each
token is sampled as without a draft, and the first one that differs from the draft ends the step.
"""

from array import array

import numpy as np

MAX_NGRAM = 4
MIN_NGRAM = 2
"""Lengths of the n-gram at the end of the text that is looked up in earlier text; longer matches take precedence."""

MAX_NGRAM_DRAFT_TOKENS = 8
INITIAL_DRAFT_TOKENS = 4
"""Length of a draft in tokens: its maximum, and that of the first draft."""

MIN_GAIN = 1.05
"""Speedup in tokens per second, over steps without drafts, below which drafting pauses."""

GAIN_SMOOTHING = 0.3
"""Weight of the latest step in the moving average of the speedup."""

MIN_COOLDOWN_STEPS = 8
MAX_COOLDOWN_STEPS = 64
"""Steps without drafts after drafting did not pay off. The number doubles each time."""


class Drafter:
    """Drafts for one sequence. Their length adapts to the number of accepted tokens; drafting pauses if it is slow."""

    def __init__(self) -> None:
        self._length = INITIAL_DRAFT_TOKENS
        self._gain = 1.5
        self._cooldown = 0
        self._next_cooldown = MIN_COOLDOWN_STEPS

    def propose(self, tokens: "array[int]", max_tokens: int) -> list[int]:
        """Returns a draft of up to `max_tokens` tokens. Call it once per step: each call counts down a pause."""
        if self._cooldown:
            self._cooldown -= 1
            return []
        return find_continuation(tokens, min(self._length, max_tokens))

    def update(self, drafted: int, accepted: int, cost: float) -> None:
        """Records a verified draft: the first `accepted` of `drafted` tokens were right.

        `cost` is the duration of the step, relative to a step without drafts.
        """
        self._length = min(2 * self._length, MAX_NGRAM_DRAFT_TOKENS) if accepted == drafted else accepted + 1
        self._gain += GAIN_SMOOTHING * ((1 + accepted) / cost - self._gain)
        if self._gain >= MIN_GAIN:
            if accepted:
                self._next_cooldown = MIN_COOLDOWN_STEPS
            return
        self._gain = MIN_GAIN
        self._cooldown = self._next_cooldown
        self._next_cooldown = min(2 * self._next_cooldown, MAX_COOLDOWN_STEPS)


def find_continuation(tokens: "array[int]", max_tokens: int) -> list[int]:
    """The tokens after the latest earlier occurrence of the last two to four tokens, at most `max_tokens` of them.

    If these run into the end of the text, the draft continues as if the text repeated from there.

    Example: tokens = [1, 2, 3, 4, 2, 3], max_tokens = 4. The last two tokens, 2 3, also occur at index 1; no longer
    match exists, since 4 2 3 occurs once. The draft continues after that occurrence with 4 2 3, which ends the text,
    and repeats: [4, 2, 3, 4].
    """
    if max_tokens <= 0 or len(tokens) <= MIN_NGRAM:
        return []
    ids = np.frombuffer(tokens, np.intc)
    matches = np.flatnonzero(ids[:-1] == ids[-1])
    matched = 1
    while matched < MAX_NGRAM:
        extended = matches[matches >= matched]
        extended = extended[ids[extended - matched] == ids[-1 - matched]] if matched < len(ids) else extended[:0]
        if not len(extended):
            break
        matches, matched = extended, matched + 1
    if matched < MIN_NGRAM:
        return []
    start = int(matches[-1]) + 1
    period = len(tokens) - start
    draft = tokens[start : start + max_tokens].tolist()
    while len(draft) < max_tokens:
        draft.append(draft[-period])
    return draft
