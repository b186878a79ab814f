"""Decides how many tokens a draft model drafts in a step, from measured acceptance and measured costs.

This module knows no model and no clock: numbers in, a length out. The gain of a length is the number of tokens that a
step with drafts of it generates, relative to one without, divided by what it takes, relative to one without.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

DRAFT_LENGTHS = (1, 2, 3, 4, 6, 8)
"""Lengths of drafts in tokens."""

MAX_DRAFT_TOKENS = DRAFT_LENGTHS[-1]

INITIAL_RATE = 0.5
"""Acceptance that is assumed before any draft was verified."""

PRIOR_TOKENS = 4.0
"""Verified tokens for which an assumed acceptance counts."""

MEMORY_TOKENS = 40
"""Verified tokens after which one counts a third."""

MIN_RATE = 0.1
"""Acceptance below which a sequence gets no drafts while others do."""

RETRY_STEPS = 64
"""Steps after which such a sequence gets one again."""

ASSUMED_COST = 0.1
"""Cost of each drafted token before any was measured, in steps without drafts."""

MIN_GAIN = 1.05
"""Gain below which drafting pauses."""

MIN_PAUSE_STEPS = 32
MAX_PAUSE_STEPS = 256
"""Steps without drafts after drafting did not pay off. The number doubles each time."""

REMEASURE_DRAFTS_AFTER_STEPS = 128
"""Steps with drafts after which steps without are measured again, and costs of lengths that were not used."""

REMEASURED_STEPS = 2


class Acceptance:
    """Share of drafted tokens that are accepted, if those before them were. Older tokens count less."""

    def __init__(self, rate: float = INITIAL_RATE) -> None:
        self._accepted, self._verified = rate * PRIOR_TOKENS, PRIOR_TOKENS

    @property
    def rate(self) -> float:
        """Share of the verified tokens that were accepted."""
        return self._accepted / self._verified

    def record(self, drafted: int, accepted: int) -> None:
        """Records a draft of `drafted` tokens, of which the first `accepted` were right."""
        verified = min(accepted + 1, drafted)
        kept = (1 - 1 / MEMORY_TOKENS) ** verified
        self._accepted = kept * self._accepted + accepted
        self._verified = kept * self._verified + verified


class DraftPolicy:
    """Chooses the length of the drafts of each step."""

    def __init__(self) -> None:
        self.gain = 1.0
        """Expected gain of the step that was planned last."""
        self._costs: defaultdict[int, dict[int, deque[float]]] = defaultdict(dict)
        self._pause, self._next_pause = 0, MIN_PAUSE_STEPS
        self._steps = self._plain_steps = 0
        self._is_trial_due = False

    def choose_length(self, num_running: int, rates: Sequence[float]) -> tuple[int, bool]:
        """Returns the length for sequences with these acceptance rates, among `num_running`, and whether it is a trial.

        Call it once per step. Length 0: no draft pays off, or steps without drafts are to be measured. A trial is a
        draft that is not expected to pay off; one sequence is enough for it.
        """
        if self._plain_steps:
            self._plain_steps -= 1
            self.gain = 1.0
            return 0, False
        length = self._find_best(num_running, rates)
        if self.gain < MIN_GAIN and not self._pause and not self._is_trial_due:
            self._costs.pop(_batch_class(len(rates)), None)  # it may be cheaper now
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, MAX_PAUSE_STEPS)
            length = self._find_best(num_running, rates)
            self._is_trial_due = self.gain < MIN_GAIN
        if self.gain >= MIN_GAIN:
            self._is_trial_due = False
            return length, False
        self.gain = 1.0
        if self._is_trial_due:
            return DRAFT_LENGTHS[0], True
        self._pause -= 1
        return 0, False

    def record(self, num_drafted: int, length: int, cost: float | None, *, is_trial: bool) -> None:
        """Records a step in which `num_drafted` sequences had drafts of up to `length` tokens.

        `cost` is its duration, drafting included, relative to a step without drafts; None if it is unknown.
        """
        if cost is not None:
            known = self._costs[_batch_class(num_drafted)]
            known.setdefault(length, deque(maxlen=8)).append(cost)
        if is_trial:
            self._is_trial_due = False
            return
        self._steps += 1
        if self._steps % REMEASURE_DRAFTS_AFTER_STEPS == 0:
            self._plain_steps, self._next_pause = REMEASURED_STEPS, MIN_PAUSE_STEPS
            for batch_class, known in self._costs.items():
                self._costs[batch_class] = {length: known[length]} if length in known else {}

    def _find_best(self, num_running: int, rates: Sequence[float]) -> int:
        """Returns the length with the greatest gain, and sets `gain`."""
        gains = {
            length: (num_running - len(rates) + sum(expected_tokens(rate, length) for rate in rates))
            / (num_running * self._estimate_cost(len(rates), length))
            for length in DRAFT_LENGTHS
        }
        best = max(DRAFT_LENGTHS, key=lambda length: gains[length]) if rates else DRAFT_LENGTHS[0]
        self.gain = gains[best] if rates else 1.0
        return best

    def _estimate_cost(self, num_drafted: int, length: int) -> float:
        """Cost of a step with drafts of this length, from that of the nearest one that was measured.

        A longer draft than any that was measured is taken to cost half as much for each further token, so that it is
        tried.
        """
        batch_class = _batch_class(num_drafted)
        known = self._costs.get(batch_class)
        if not known:
            return 1 + ASSUMED_COST * length
        nearest = min(known, key=lambda other: abs(other - length))
        samples = sorted(known[nearest])
        extra = max(samples[len(samples) // 4] - 1, 0.0)  # the first quartile, as of steps without drafts
        if length > nearest:
            return 1 + extra * (1 + (length - nearest) / nearest / 2)
        return 1 + extra * length / nearest


def expected_tokens(rate: float, length: int) -> float:
    """Tokens that a step generates on average with a draft of `length` tokens, each accepted at this rate.

    Example: rate 0.5, length 2: 1 + 0.5 + 0.25 tokens.
    """
    return sum(rate**index for index in range(length + 1))


def _batch_class(num_drafted: int) -> int:
    """Key under which costs are measured: numbers of sequences within a factor of two share one."""
    return num_drafted.bit_length()
