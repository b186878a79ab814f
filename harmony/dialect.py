"""A dialect as a declaration, and the one reader that serves all of them.

A dialect says how reasoning is marked and in which frames calls are written; what a frame is made of stands in
`frames`, `tagged` and the like. The reader goes through the answer from marker to marker. A marker counts only as a
part of something that reads well; otherwise it is text as written.
"""

from msgspec import Struct

from antiphon.harmony.calls.base import CallFormat
from antiphon.harmony.calls.citations import CitationFormat
from antiphon.harmony.format import PromptInput
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Parser, literals
from antiphon.harmony.tokens.detokenizer import MarkerAlphabet


class Dialect(Struct, frozen=True, kw_only=True):
    """How a family of models marks what it means. Frames that share an opener are tried in order.

    `think` are the opener and the closer of reasoning. `raw` is how a call of a custom tool is written back into a
    prompt, with `{name}` and `{input}` in it; empty: as a function with one parameter `input`. `lesson` tells a model
    how to write `raw`, with `{tools}` in it.
    """

    name: str
    models: str = ""
    """Who writes so, for people."""
    template_markers: tuple[str, ...] = ()
    """What a chat template of such a model holds, all of it."""
    think: tuple[str, str] | None = None
    think_aliases: tuple[tuple[str, str], ...] = ()
    """Other marks of reasoning that such models write."""
    answer: tuple[str, str] | None = None
    """What some put around the text for the user: it is no part of it."""
    citations: CitationFormat | None = None
    """How sources are told of inside the text."""
    ignored_markers: tuple[str, ...] = ()
    """Marks of the model's own that stand between all that and say nothing."""
    calls: tuple[CallFormat, ...] = ()
    freeform_call: str = ""
    freeform_instructions: str = ""
    stop: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>")

    @property
    def think_markers(self) -> tuple[tuple[str, str], ...]:
        """Every pair of marks of reasoning, the usual one first."""
        return (self.think, *self.think_aliases) if self.think else ()

    @property
    def all_markers(self) -> tuple[str, ...]:
        """Everything that is more than text."""
        ours = (*(mark for pair in self.think_markers for mark in pair), *(self.answer or ()), *self.ignored_markers)
        ours += (self.citations.open, self.citations.close) if self.citations else ()
        return tuple(dict.fromkeys((*ours, *(marker for frame in self.calls for marker in frame.markers))))


class DialectReader(TapeReader):
    """Reads an answer from marker to marker."""

    def __init__(
        self, dialect: Dialect, alphabet: MarkerAlphabet, prompt_input: PromptInput, *, in_reasoning: bool
    ) -> None:
        super().__init__(alphabet, prompt_input)
        self._in_reasoning = in_reasoning
        self._at_start = True  # nothing but blanks was said since the answer, or a part of it, began
        spell = alphabet.tape_text
        self._openers = {spell(opener) for opener, _ in dialect.think_markers}
        self._closers = {spell(closer) for _, closer in dialect.think_markers}
        self._wrapped = False
        self._wrapper = [spell(marker) for marker in dialect.answer or ()]
        self._unwrapping = [f"\n{marker}" for marker in self._wrapper[1:]]
        frames = dialect.calls if self.may_call else ()
        self._call_formats = [(frame, {spell(opener) for opener in frame.openers}) for frame in frames]
        openers = {opener for _, openers in self._call_formats for opener in openers}
        self._citations, self._items = dialect.citations, prompt_input.items
        self._cite = spell(dialect.citations.open) if dialect.citations else None
        self._ignored = {spell(marker) for marker in dialect.ignored_markers}
        around = [
            *filter(None, [self._cite]),
            *sorted(self._ignored),
            *sorted(self._openers | self._closers),
            *self._wrapper,
            *self._unwrapping,
        ]
        self._stops = literals(*around, *sorted(openers))

    def parse_turn(self) -> Parser[None]:
        """Read the whole answer."""
        while (yield from self.tape.wait_more()):
            if count := self.tape.count_clear(self._stops):
                self._emit_text(count)
            elif marker := (yield from self.tape.match_literal(self._stops)):
                yield from self._handle_marker(marker)

    def _emit_text(self, count: int) -> None:
        self._at_start = self._at_start and self.tape.peek(count).isspace()
        if self._in_reasoning:
            self.emit_reasoning(count)
        else:
            self.emit_text(count)

    def _handle_marker(self, marker: str) -> Parser[None]:
        if marker in self._closers and (self._in_reasoning or self._at_start):
            self._switch_mode(len(marker), thinking=False)
        elif marker in self._openers and self._at_start:
            # In the midst of a text it is quoted rather than meant; at the head of reasoning it is said twice.
            self._switch_mode(len(marker), thinking=True)
        elif marker == self._cite:
            yield from self._read_citation(marker)
        elif marker in self._ignored:
            self.tape.skip(len(marker))
        elif marker in self._wrapper or marker in self._unwrapping:
            yield from self._handle_wrapper(marker)
        elif not (yield from self._read_calls(marker)):
            self._emit_text(len(marker))

    def _read_citation(self, marker: str) -> Parser[None]:
        """What is cited, or a marker that stands for itself."""
        others = self._stops.literals
        if self._citations and (
            yield from self.try_parse(
                self._citations.read_citation(self, self._items, others, thinking=self._in_reasoning)
            )
        ):
            self._at_start = False
        else:
            self._emit_text(len(marker))

    def _handle_wrapper(self, marker: str) -> Parser[None]:
        """The opener counts at the head of an answer, the closer where one was opened."""
        opens = marker == self._wrapper[0]
        if self._in_reasoning or (not self._at_start if opens else not self._wrapped):
            self._emit_text(len(marker))
            return
        self.tape.skip(len(marker))
        self._wrapped = opens
        if opens:
            yield from self.tape.skip_literal("\n")

    def _switch_mode(self, count: int, *, thinking: bool) -> None:
        self.tape.skip(count)
        self._in_reasoning = thinking
        self._at_start = True

    def _read_calls(self, marker: str) -> Parser[bool]:
        for frame, openers in self._call_formats:
            if frame.head_only and (self._in_reasoning or not self._at_start):
                continue
            if marker in openers and (yield from self.try_parse(frame.read_calls(self))):
                # A call ends reasoning even where its closer is missing.
                self._in_reasoning, self._at_start = False, True
                return True
        return False
