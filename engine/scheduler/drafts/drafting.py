"""Drafts of a core: n-grams of the text itself and, with a draft model, the tokens that this model proposes.

Which of the sequences get drafts, and how long these are, depends on measured durations. Drafts change no token.
"""

import logging
from collections.abc import Callable, Collection

from antiphon.engine.scheduler.drafts.draft_model import MAX_LAG_TOKENS, DraftModel
from antiphon.engine.scheduler.drafts.draft_policy import (
    MAX_DRAFT_TOKENS,
    MIN_RATE,
    RETRY_STEPS,
    Acceptance,
    DraftPolicy,
)
from antiphon.engine.scheduler.prefill_budget import PrefillBudget
from antiphon.engine.scheduler.sequence import Sequence
from antiphon.engine.scheduler.step_output import ScheduledTokens, SequenceOutput

log = logging.getLogger(__name__)

MAX_DRAFT_CHUNK_TOKENS = 512
"""Tokens that a draft model reads in a step at most, while sequences decode."""


class Drafting:
    """Adds drafts to steps in which all sequences decode, and learns from their results.

    N-grams draft while at most `max_ngram_seqs` sequences run, `model` for those that have no match. Each step calls
    `add`, and `record` once it has succeeded. `prefill_budget` knows the durations of steps without drafts. None means
    no drafts at all. `suppressed` ids are never drafted.
    """

    def __init__(
        self,
        prefill_budget: PrefillBudget | None,
        clock: Callable[[], float],
        max_ngram_seqs: int,
        model: DraftModel | None = None,
        suppressed: Collection[int] = (),
    ) -> None:
        self.max_ngram_seqs = max_ngram_seqs
        self.num_drafted = self.num_accepted = 0
        """Tokens that were drafted, and those that were accepted, since the start."""
        self._budget = prefill_budget
        self._suppressed = suppressed
        self.model_drafts = (
            None if model is None or prefill_budget is None else ModelDrafts(model, prefill_budget, clock)
        )

    def add(self, scheduled: list[tuple[Sequence, int]], running: list[Sequence]) -> list[ScheduledTokens]:
        """Adds drafts if all of the running sequences decode.

        A step without drafts must have been measured before, since the gain of a draft is computed from it. Steps with
        prompts get none: `PrefillBudget` relies on measuring steps that only decode.
        """
        entries = [ScheduledTokens(sequence, count, []) for sequence, count in scheduled]
        if self._budget is None or any(sequence.num_pending > 1 for sequence in running):
            return entries
        if self._budget.decode_seconds(len(running)) is None:
            return entries
        if len(running) <= self.max_ngram_seqs:
            for entry in entries:
                entry.draft = propose_draft(entry.sequence, self._suppressed)
        if self.model_drafts is not None:
            try:
                self.model_drafts.add([entry for entry in entries if not entry.draft], len(running))
            except Exception:  # sequences are decoded without drafts
                log.exception("the draft model failed: there are no more drafts of it")
                self.model_drafts = None
        return entries

    def record(
        self, scheduled: list[ScheduledTokens], outputs: list[SequenceOutput], decoding: int, seconds: float
    ) -> None:
        """Passes the duration of a step to the prefill budget or, if the step had drafts, to their sources."""
        if self._budget is None:
            return
        drafts = {entry.sequence.job.id: entry.draft for entry in scheduled if entry.draft}
        if not drafts:
            prompt_tokens = sum(entry.count for entry in scheduled) - decoding
            self._budget.record_step(decoding, prompt_tokens, seconds)
            if self.model_drafts is not None and not prompt_tokens:
                self.model_drafts.budget.record_step(decoding, 0, seconds)
            return
        by_model = {} if self.model_drafts is None else self.model_drafts.take_drafted()
        baseline = self._budget.decode_seconds(decoding)
        cost = seconds / baseline if baseline else 1.0
        for output in outputs:
            draft = drafts.get(output.sequence.job.id)
            if not draft or not output.tokens:
                continue
            accepted = sum(one == other for one, other in zip(draft, output.tokens, strict=False))
            self.num_drafted += len(draft)
            self.num_accepted += accepted
            if output.finish:
                continue
            if output.sequence.job.id in by_model and self.model_drafts is not None:
                self.model_drafts.record_acceptance(output.sequence, len(draft), accepted)
            else:
                gain = (
                    1.0 if self.model_drafts is None else self.model_drafts.policy.gain
                )  # what the draft model would gain
                output.sequence.drafter.update(len(draft), accepted, cost * gain)
        if by_model and self.model_drafts is not None and len(by_model) == len(drafts):
            self.model_drafts.record_cost(list(drafts.values()), seconds, baseline)

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """Frees what a sequence that no longer runs has here; keeps it for others if `keep` is set."""
        if self.model_drafts is not None:
            self.model_drafts.model.release(sequence, keep=keep)


class ModelDrafts:
    """The part of `Drafting` that a draft model needs: which sequences it drafts for, and what that costs."""

    def __init__(self, model: DraftModel, prefill_budget: PrefillBudget, clock: Callable[[], float]) -> None:
        self.model = model
        self.policy = DraftPolicy()
        self.budget = PrefillBudget(MAX_DRAFT_CHUNK_TOKENS)
        """Tokens that the draft model may read per step, so that other sequences do not wait for it."""
        self._prefill_budget, self._clock = prefill_budget, clock
        self._acceptance = Acceptance()
        self._steps = self._num_trials = 0
        self._seconds = 0.0
        self._drafted: frozenset[str] = frozenset()
        self._is_trial = False

    def add(self, entries: list[ScheduledTokens], num_running: int) -> None:
        """Drafts for those of the sequences that may have drafts. Caches that lack too much read a part of it."""
        self._steps += 1
        self._drafted = frozenset()
        unread: list[tuple[ScheduledTokens, int]] = []
        limits = {entry.sequence.job.id: limit_draft(entry.sequence) for entry in entries}
        eligible = [entry for entry in entries if self._is_eligible(entry.sequence, limits[entry.sequence.job.id])]
        if not eligible:
            return
        promising = [entry for entry in eligible if self._is_promising(entry.sequence)]
        rates = [self._find_acceptance(entry.sequence).rate for entry in promising]
        length, self._is_trial = self.policy.choose_length(num_running, rates)
        if not length:
            return
        if self._is_trial:
            promising = [eligible[self._num_trials % len(eligible)]]
        for entry in promising:
            count = self.model.count_unread(entry.sequence, MAX_DRAFT_TOKENS)
            if count is not None:
                unread.append((entry, count))
        self._read([(entry.sequence, count) for entry, count in unread if count > MAX_LAG_TOKENS], num_running)
        ready = [entry for entry, count in unread if count <= MAX_LAG_TOKENS]
        if ready:
            started_at = self._clock()
            lengths = [min(length, limits[entry.sequence.job.id]) for entry in ready]
            drafts = self.model.propose([entry.sequence for entry in ready], lengths)
            self._seconds = self._clock() - started_at
            for entry, draft in zip(ready, drafts, strict=True):
                entry.draft = draft
            self._drafted = frozenset(entry.sequence.job.id for entry in ready)

    def take_drafted(self) -> frozenset[str]:
        """Returns the jobs whose drafts of this step are the model's."""
        drafted, self._drafted = self._drafted, frozenset()
        return drafted

    def record_acceptance(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Records a verified draft: the first `accepted` of `drafted` tokens were right."""
        self._find_acceptance(sequence).record(drafted, accepted)
        self._acceptance.record(drafted, accepted)

    def record_cost(self, drafts: list[list[int]], seconds: float, baseline: float | None) -> None:
        """Records a step with these drafts, whose verification took `seconds`, and a step without drafts `baseline`."""
        cost = (self._seconds + seconds) / baseline if baseline else None
        self._num_trials += self._is_trial
        self.policy.record(len(drafts), max(map(len, drafts)), cost, is_trial=self._is_trial)

    def _is_eligible(self, sequence: Sequence, limit: int) -> bool:
        """False without room for a draft, and for pictures, whose positions differ."""
        return limit > 0 and sequence.pictures is None and not sequence.needs_prompt_logprobs

    def _is_promising(self, sequence: Sequence) -> bool:
        return self._find_acceptance(sequence).rate >= MIN_RATE or self._steps % RETRY_STEPS == 0

    def _find_acceptance(self, sequence: Sequence) -> Acceptance:
        """Acceptance of a sequence; that of all, as long as it had no draft."""
        if sequence.acceptance is None:
            sequence.acceptance = Acceptance(self._acceptance.rate)
        return sequence.acceptance

    def _read(self, sequences: list[tuple[Sequence, int]], num_running: int) -> None:
        """Reads tokens of the first sequences, each with its number of unread ones, as far as the budget goes."""
        if not sequences:
            return
        baseline = self._prefill_budget.decode_seconds(num_running)
        budget = remaining = self.budget.next_budget(num_running, len(sequences))
        chunks = []
        for sequence, unread in sequences:
            count = min(unread - 1, remaining)
            if count:
                chunks.append((sequence, count))
                remaining -= count
        if chunks:
            started_at = self._clock()
            self.model.read(chunks)
            seconds = self._clock() - started_at
            self.budget.record_step(num_running, budget - remaining, (baseline or 0.0) + seconds)


def limit_draft(sequence: Sequence) -> int:
    """Returns the length of a draft that fits into the sequence's token limit and into the capacity of its cache."""
    spare_capacity = sequence.cache.capacity - len(sequence.tokens)
    return int(min(spare_capacity, sequence.max_new_tokens - sequence.num_generated - 1))


def propose_draft(sequence: Sequence, suppressed: Collection[int]) -> list[int]:
    """Returns an n-gram draft that fits into the sequence's token limit and into the capacity of its cache.

    It ends before the first of the `suppressed` tokens, which is never generated and may stand for a picture.
    """
    if sequence.needs_prompt_logprobs:
        return []
    draft = sequence.drafter.propose(sequence.tokens, limit_draft(sequence))
    if not suppressed:
        return draft
    return draft[: next((index for index, token in enumerate(draft) if token in suppressed), len(draft))]
