"""Reads the tokens of a turn: the dialect of its rounds, stop strings, citations, and the summary before them."""

from collections.abc import Iterable, Sequence

from antiphon.app.tools.search.citations import SourceList
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turn_types.turn_rules import TurnRules
from antiphon.app.turns.core.citations import CitationReader
from antiphon.app.turns.core.rounds import Round
from antiphon.app.turns.core.stop_strings import StopStringFilter
from antiphon.app.turns.core.summary_reader import SummaryReader
from antiphon.app.turns.core.token_details import decode_logprob
from antiphon.engine.protocol import TokenLogprob
from antiphon.harmony.format import ModelFormat
from antiphon.state.segments import Say, Segment


class TurnReading:
    """Turns the tokens of one turn into segments. Calls are followed elsewhere: by `TurnCalls`."""

    def __init__(self, form: ModelFormat, rules: TurnRules, prompt: TurnPrompt) -> None:
        self._format, self._rules = form, rules
        summary_prompt = prompt if rules.ends_compacted else prompt.summary
        self.summary = SummaryReader(form, summary_prompt) if summary_prompt else None
        """Reads the summary with which the turn begins; None if it begins with a round."""
        self._plain = (
            form.passthrough.create_reader(keep_special_tokens=rules.keep_special_tokens)
            if rules.is_plain_text
            else None
        )
        self._citations = CitationReader()
        self.stops = self._create_filter()

    def open_round(self, prompt: TurnPrompt, first_item: int) -> Round:
        """Returns a round that begins. Its output is that of no earlier one."""
        reader = self._plain or self._format.create_reader(prompt.prompt, prompt.prompt_input)
        self.stops = self._create_filter()
        return Round(prompt, reader, first_item)

    def read_tokens(
        self, current: Round, tokens: tuple[int, ...], logprobs: Sequence[TokenLogprob] = ()
    ) -> list[Segment]:
        """Returns the segments that more tokens give."""
        if not self._rules.logprobs:
            return current.reader.feed(tokens)
        return current.reader.feed(tokens, [decode_logprob(self._format, entry) for entry in logprobs])

    def take_offsets(self) -> Sequence[int]:
        """Returns the offset of each token since the last call, in plain text; nothing in the output of a dialect."""
        return self._plain.take_offsets() if self._plain is not None else ()

    @property
    def summary_text(self) -> str:
        """The summary of the conversation; empty if there is none, or if it has failed."""
        return self.summary.text if self.summary is not None else ""

    def start_message(self, sources: SourceList) -> None:
        """Begins a message, whose links to sources are citations."""
        self._citations.start_message(sources)

    def cite(self, text: Say) -> Iterable[Segment]:
        """Yields the text of a message in pieces, each link to a source with its citation behind it."""
        return self._citations.read_text(text)

    def _create_filter(self) -> StopStringFilter:
        return StopStringFilter(self._rules.stop_strings, verbatim=self._rules.is_plain_text)
