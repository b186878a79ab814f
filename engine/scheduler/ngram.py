"""Guessing several tokens at once, from what the text has said before, so that one step can check them all.

It knows no model: tokens in, a draft out. A draft decides only how many tokens a step brings, never which: each token
is drawn as it would have been without, and the first that differs from the draft ends the step.
"""

from array import array

import numpy as np

LONGEST_GRAM = 4
SHORTEST_GRAM = 2
"""A draft continues an earlier place at which the last so many tokens stood; longer matches go first."""

LONGEST = 8
FIRST = 4
"""Tokens of a draft, at most and to begin with."""

PAYS = 1.05
"""Drafting goes on while a step with a draft brings so many times the tokens per second of one without."""

WEIGHT = 0.3
"""How much the latest step counts in what drafting is thought to bring."""

SHORTEST_REST = 8
LONGEST_REST = 64
"""Steps without drafts after drafting did not pay; each time twice as many."""


class Drafter:
    """One sequence's drafts: their length follows how much of them is right; they rest where they do not pay."""

    def __init__(self) -> None:
        self._length = FIRST
        self._gain = 1.5
        self._rest = 0
        self._next_rest = SHORTEST_REST

    def draft(self, tokens: "array[int]", most: int) -> list[int]:
        """Up to ``most`` tokens that may follow; to be asked once a step."""
        if self._rest:
            self._rest -= 1
            return []
        return lookup(tokens, min(self._length, most))

    def learn(self, drafted: int, accepted: int, cost: float) -> None:
        """The first ``accepted`` of ``drafted`` were right; the step took ``cost`` times as long as one without."""
        self._length = min(2 * self._length, LONGEST) if accepted == drafted else accepted + 1
        self._gain += WEIGHT * ((1 + accepted) / cost - self._gain)
        if self._gain >= PAYS:
            if accepted:
                self._next_rest = SHORTEST_REST
            return
        self._gain = PAYS
        self._rest = self._next_rest
        self._next_rest = min(2 * self._next_rest, LONGEST_REST)


def lookup(tokens: "array[int]", most: int) -> list[int]:
    """What followed the last time that the last two to four tokens stood together, at most ``most`` tokens of it.

    Where that place is so near that it runs into the end, the text is taken to repeat itself.
    """
    if most <= 0 or len(tokens) <= SHORTEST_GRAM:
        return []
    known = np.frombuffer(tokens, np.intc)
    places = np.flatnonzero(known[:-1] == known[-1])
    matched = 1
    while matched < LONGEST_GRAM:
        longer = places[places >= matched]
        longer = longer[known[longer - matched] == known[-1 - matched]] if matched < len(known) else longer[:0]
        if not len(longer):
            break
        places, matched = longer, matched + 1
    if matched < SHORTEST_GRAM:
        return []
    begin = int(places[-1]) + 1
    period = len(tokens) - begin
    draft = tokens[begin : begin + most].tolist()
    while len(draft) < most:
        draft.append(draft[-period])
    return draft
