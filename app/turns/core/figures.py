"""Counts the tokens of a turn, and collects what the events of a step do not carry."""

from msgspec import UNSET, UnsetType

from antiphon.app.turn_types.step_detail import TokenDetail
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turn_types.turn_rules import TurnRules
from antiphon.app.turns.core.rounds import Round, sum_usage
from antiphon.app.turns.core.summary_reader import SummaryReader
from antiphon.app.turns.core.token_details import DetailCollector
from antiphon.events.response import CacheHit, CacheUnavailable, PromptCacheDiagnostics, Usage
from antiphon.harmony.format import ModelFormat

MAX_ROUNDING_TOKENS = 256
"""Common tokens that an engine may compute again: caches are reused in pages, or up to positions that were planned."""
_SINGLE_BYTES = tuple(bytes((number,)) for number in range(256))


class TurnFigures:
    """The rounds of one turn and their figures. `summary` is that with which the turn begins, if any."""

    def __init__(
        self, form: ModelFormat, rules: TurnRules, prompt: TurnPrompt, first: Round, summary: SummaryReader | None
    ) -> None:
        self._rules, self._summary = rules, summary
        self.round = first
        """The round that runs, or ran last."""
        self.done_rounds: list[Round] = []
        self.details = DetailCollector(form, prompt.prompt, rules.details)
        self._num_steps = 0

    @property
    def rounds(self) -> list[Round]:
        """The rounds so far that have a job. Calls that the client approved are a round without one.

        The first round counts before the engine has its job.
        """
        rounds = [*self.done_rounds, self.round]
        return [each for each in rounds if each.is_admitted] if self.done_rounds else rounds

    @property
    def num_generated_tokens(self) -> int:
        """Number of tokens that the model has generated in all rounds."""
        return sum(len(each.generated_tokens) for each in self.rounds)

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens in the prompts of all rounds."""
        return sum(each.num_prompt_tokens for each in self.rounds)

    def start_round(self, following: Round) -> None:
        """Begins another round after the one that ran."""
        self.done_rounds.append(self.round)
        self.round = following

    def note_unoffered(self) -> None:
        """Collects the calls of tools that were not offered."""
        if calls := self.round.unoffered_calls:  # never, in most turns
            self.details.add_unoffered(calls, sum(len(each.generated_tokens) for each in self.done_rounds))
            calls.clear()

    def take_detail(
        self, stop_string: str | None, dropped_text: str, steps: bytearray, at_us: int | None
    ) -> TokenDetail:
        """Returns what the events since the last call do not carry. `steps`: all cells that have run.

        `at_us` is the time of this step, in a turn that is recorded; only then the detail has the cells, too.
        """
        if at_us is None:
            return self.details.take_detail(stop_string, dropped_text)
        first, self._num_steps = self._num_steps, len(steps)
        # Most steps have one cell. A copy of the slice takes as long as all else here.
        cells = _SINGLE_BYTES[steps[first]] if self._num_steps == first + 1 else bytes(steps[first:])
        return self.details.take_detail(stop_string, dropped_text, at_us, cells)

    def build_usage(self) -> Usage:
        """Returns the sum of all jobs so far."""
        # A turn that ends with its summary has no other job.
        has_answer = self._summary is None or not (self._summary.is_open or self._rules.ends_compacted)
        return sum_usage(self.rounds if has_answer else (), self._summary)

    def diagnose_cache(self) -> PromptCacheDiagnostics | UnsetType:
        """Returns the diagnosis of the prompt cache; UNSET if none was asked for."""
        first = next(iter(self.rounds), self.round)
        prompt, cached = first.prompt, first.cached_tokens
        if self._rules.ends_compacted and self._summary is not None:
            cached = self._summary.num_cached_tokens
        if isinstance(prompt.diagnostics, CacheHit) and cached < max(prompt.num_comparable - MAX_ROUNDING_TOKENS, 1):
            return CacheUnavailable()  # the tokens are common, but the engine no longer has them, or does not say so
        return UNSET if prompt.diagnostics is None else prompt.diagnostics
