"""Guessing several tokens at once, from what the text has said before, so that one step can check them all.

It knows no model: tokens in, a draft out. A draft decides only how many tokens a step brings, never which: each token
is drawn as it would have been without, and the first that differs from the draft ends the step.
"""

from array import array

import numpy as np

MAX_NGRAM = 4
MIN_NGRAM = 2
"""A draft continues an earlier place at which the last so many tokens stood; longer matches go first."""

MAX_DRAFT_TOKENS = 8
INITIAL_DRAFT_TOKENS = 4
"""Tokens of a draft, at most and to begin with."""

MIN_GAIN = 1.05
"""Drafting goes on while a step with a draft brings so many times the tokens per second of one without."""

GAIN_SMOOTHING = 0.3
"""How much the latest step counts in what drafting is thought to bring."""

MIN_COOLDOWN_STEPS = 8
MAX_COOLDOWN_STEPS = 64
"""Steps without drafts after drafting did not pay; each time twice as many."""


class Drafter:
    """One sequence's drafts: their length follows how much of them is right; they rest where they do not pay."""

    def __init__(self) -> None:
        self._length = INITIAL_DRAFT_TOKENS
        self._gain = 1.5
        self._cooldown = 0
        self._next_cooldown = MIN_COOLDOWN_STEPS

    def propose(self, tokens: "array[int]", max_tokens: int) -> list[int]:
        """Up to ``most`` tokens that may follow; to be asked once a step."""
        if self._cooldown:
            self._cooldown -= 1
            return []
        return find_continuation(tokens, min(self._length, max_tokens))

    def update(self, drafted: int, accepted: int, cost: float) -> None:
        """The first ``accepted`` of ``drafted`` were right; the step took ``cost`` times as long as one without."""
        self._length = min(2 * self._length, MAX_DRAFT_TOKENS) if accepted == drafted else accepted + 1
        self._gain += GAIN_SMOOTHING * ((1 + accepted) / cost - self._gain)
        if self._gain >= MIN_GAIN:
            if accepted:
                self._next_cooldown = MIN_COOLDOWN_STEPS
            return
        self._gain = MIN_GAIN
        self._cooldown = self._next_cooldown
        self._next_cooldown = min(2 * self._next_cooldown, MAX_COOLDOWN_STEPS)


def find_continuation(tokens: "array[int]", max_tokens: int) -> list[int]:
    """What followed the last time that the last two to four tokens stood together, at most ``most`` tokens of it.

    Where that place is so near that it runs into the end, the text is taken to repeat itself.
    """
    if max_tokens <= 0 or len(tokens) <= MIN_NGRAM:
        return []
    known = np.frombuffer(tokens, np.intc)
    places = np.flatnonzero(known[:-1] == known[-1])
    matched = 1
    while matched < MAX_NGRAM:
        longer = places[places >= matched]
        longer = longer[known[longer - matched] == known[-1 - matched]] if matched < len(known) else longer[:0]
        if not len(longer):
            break
        places, matched = longer, matched + 1
    if matched < MIN_NGRAM:
        return []
    begin = int(places[-1]) + 1
    period = len(tokens) - begin
    draft = tokens[begin : begin + max_tokens].tolist()
    while len(draft) < max_tokens:
        draft.append(draft[-period])
    return draft
