"""Reads the summary of a conversation from the tokens of its job."""

from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.core.inputs import FinishedInput, ScoredTokensInput, TokenInput
from antiphon.harmony.format import ModelFormat
from antiphon.state.segments import Say


class SummaryReader:
    """Reads a summary from the tokens of its job. Reasoning is not part of it."""

    def __init__(self, form: ModelFormat, prompt: TurnPrompt) -> None:
        self._reader = form.create_reader(prompt.prompt, prompt.prompt_input)
        self._texts: list[str] = []
        self.is_open = True
        """True until the compaction ends: what the engine generates belongs to the summary."""
        self.is_admitted = self.is_finished = False
        """True once the engine has the job, or has ended it."""
        self.num_prompt_tokens = prompt.prompt.num_tokens
        self.num_cached_tokens = 0
        self.generated_tokens: list[int] = []

    @property
    def num_generated_tokens(self) -> int:
        """Number of generated tokens."""
        return len(self.generated_tokens)

    @property
    def reasoning_tokens(self) -> int:
        """Number of generated tokens that are reasoning."""
        return self._reader.reasoning_tokens

    @property
    def text(self) -> str:
        """The summary so far."""
        return "".join(self._texts).strip()

    def count_prompt(self, cached_tokens: int, prompt_tokens: int) -> None:
        """Takes the counts of the prompt's tokens that the engine has told."""
        self.num_cached_tokens = max(self.num_cached_tokens, cached_tokens)
        self.num_prompt_tokens = prompt_tokens or self.num_prompt_tokens

    def read_tokens(self, step: TokenInput) -> None:
        """Reads one engine step. A summary that was cut at the token limit is valid, one whose job failed is empty."""
        if isinstance(step, ScoredTokensInput):
            self.count_prompt(step.cached_tokens, step.prompt_tokens)
        self.generated_tokens += step.tokens
        self.is_finished = isinstance(step, FinishedInput)
        segments = self._reader.feed(step.tokens)
        if isinstance(step, FinishedInput):
            segments += self._reader.finish(natural=step.finish == "stop")
        self._texts += [segment.text for segment in segments if isinstance(segment, Say)]
        if isinstance(step, FinishedInput) and step.fault:
            self._texts.clear()
