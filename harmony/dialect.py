"""Declarations of dialects, and the one reader that serves all of them.

A dialect declares its reasoning markers and its call formats, which are defined in `calls/`. The reader steps through
the output from marker to marker. A marker counts only as part of something that parses; otherwise it is text.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from antiphon.harmony.calls.base import CallFormat
from antiphon.harmony.calls.call_block import CallBlock
from antiphon.harmony.calls.citations import CitationFormat
from antiphon.harmony.calls.raw_text import RawTextCall
from antiphon.harmony.format import PromptInput
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Parser, literals
from antiphon.harmony.tokens.detokenizer import MarkerAlphabet

PromptEnd = Literal["", "reasoning", "answer"]
CODE_FENCE = "```"
FREEFORM_INSTRUCTIONS = """# Freeform tools

These tools take raw text instead of JSON:

{tools}

To call one, write its name and the text as it is, without quotes or escapes:
{call}"""


class Dialect(Struct, frozen=True, kw_only=True):
    """Markers and call formats of a family of models. Call formats that share an opener are tried in order.

    `think` is the opener and the closer of reasoning. `freeform` is the opener and the closer of a custom tool's call
    in dialects that write arguments as JSON: raw text in a frame between the dialect's own markers, since a patch or a
    script inside a JSON string costs a model many escapes and many mistakes. A format for it is added to `calls`,
    unless a block of calls has one. Without it, the call is written as a function with one parameter `input`.
    """

    name: str
    models: str = ""
    """Models that use the dialect, for display."""
    template_markers: tuple[str, ...] = ()
    """Texts that must all occur in a chat template for the dialect to be detected; empty if it never is."""
    other_template_markers: tuple[tuple[str, ...], ...] = ()
    """Further sets of such texts, of other templates for the same models."""
    vocabulary_markers: tuple[str, ...] = ()
    """Tokens that must all be in the vocabulary for the dialect to be detected where the template does not decide."""
    model_types: tuple[str, ...] = ()
    """Values of `model_type` for which the dialect is detected where nothing else decides."""
    think: tuple[str, str] | None = None
    think_aliases: tuple[tuple[str, str], ...] = ()
    """Other pairs of reasoning markers that such models write."""
    answer: tuple[str, str] | None = None
    """Opener and closer that some models write around the text for the user. They are not part of it."""
    citations: CitationFormat | None = None
    """Syntax of citations inside the text."""
    ignored_markers: tuple[str, ...] = ()
    """Markers that such models write between the other parts and that have no meaning. They are skipped."""
    message_opener: str = ""
    """Text with which such models begin a message of their own, as between reasoning and answer. It is skipped."""
    calls: tuple[CallFormat, ...] = ()
    freeform: tuple[str, str] | None = None
    stop: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>")

    def __post_init__(self) -> None:
        if self.freeform and not any(isinstance(call_format, CallBlock | RawTextCall) for call_format in self.calls):
            raw_text = RawTextCall(open=self.freeform[0], close=self.freeform[1])
            force_setattr(self, "calls", (*self.calls, raw_text))

    @property
    def freeform_call(self) -> str:
        """Text of a custom tool's call in a prompt, with `{name}` and `{input}` in it; empty without `freeform`."""
        if self.freeform is None:
            return ""
        opener, closer = self.freeform
        return f"{opener}\n<custom={{name}}>\n{{input}}\n</custom>\n{closer}".rstrip("\n")

    @property
    def freeform_instructions(self) -> str:
        """Text, with `{tools}` in it, that teaches a model `freeform_call`, for which none was trained."""
        call = self.freeform_call.replace("{name}", "NAME").replace("{input}", "raw text")
        return FREEFORM_INSTRUCTIONS.format(tools="{tools}", call=call) if call else ""

    def find_template_markers(self, template: str) -> tuple[str, ...]:
        """Returns the first set of markers that all occur in a chat template; empty if there is none."""
        sets = filter(None, (self.template_markers, *self.other_template_markers))
        return next((markers for markers in sets if all(marker in template for marker in markers)), ())

    def find_open_part(self, rendered: str, control_texts: Iterable[str]) -> PromptEnd:
        """Returns the part of an answer that the last turn of a prompt leaves open; empty if it opens none.

        `rendered`: the prompt, in which the markers in client text are broken. `control_texts`: tokens that may begin
        a turn.
        """
        markers = [marker for pair in (*self.think_markers, self.answer or ()) for marker in pair]
        # Control tokens that markers consist of begin no turn.
        turn_starts = (rendered.rfind(text) for text in control_texts if not any(text in marker for marker in markers))
        turn_start = max([0, *turn_starts])

        def find_last(texts: Iterable[str]) -> int:
            return max((rendered.rfind(text, turn_start) for text in texts), default=-1)

        opener = find_last(opener for opener, _ in self.think_markers)
        if opener > find_last(closer for _, closer in self.think_markers):
            return "reasoning"
        if self.answer is not None and find_last(self.answer[:1]) > max(opener, find_last(self.answer[1:])):
            return "answer"
        return ""

    @property
    def think_markers(self) -> tuple[tuple[str, str], ...]:
        """Pairs of reasoning markers, the usual one first."""
        return (self.think, *self.think_aliases) if self.think else ()

    @property
    def skipped_markers(self) -> tuple[str, ...]:
        """Markers without a meaning, wherever they occur."""
        return (*self.ignored_markers, self.message_opener) if self.message_opener else self.ignored_markers

    @property
    def all_markers(self) -> tuple[str, ...]:
        """Markers of every kind, each once. Any other output is text."""
        markers = (
            *(marker for pair in self.think_markers for marker in pair),
            *(self.answer or ()),
            *self.skipped_markers,
        )
        markers += (self.citations.open, self.citations.close) if self.citations else ()
        return tuple(
            dict.fromkeys((*markers, *(marker for call_format in self.calls for marker in call_format.markers)))
        )


class DialectReader(TapeReader):
    """Parses output from marker to marker."""

    def __init__(
        self,
        dialect: Dialect,
        alphabet: MarkerAlphabet,
        prompt_input: PromptInput,
        *,
        in_reasoning: bool,
        in_text: bool = False,
        in_wrapper: bool = False,
    ) -> None:
        super().__init__(alphabet, prompt_input)
        self._in_reasoning = in_reasoning
        self._at_start = not in_text  # only blanks since the output or its current section began
        tape_text = alphabet.tape_text
        self._openers = {tape_text(opener) for opener, _ in dialect.think_markers}
        self._closers = {tape_text(closer) for _, closer in dialect.think_markers}
        self._wrapped = in_wrapper
        self._wrapper = [tape_text(marker) for marker in dialect.answer or ()]
        self._unwrapping = [f"\n{marker}" for marker in self._wrapper[1:]]
        call_formats = dialect.calls if self.may_call else ()
        self._call_formats = [
            (call_format, {tape_text(opener) for opener in call_format.openers}) for call_format in call_formats
        ]
        openers = {opener for _, openers in self._call_formats for opener in openers}
        self._citations, self._items = dialect.citations, prompt_input.items
        self._cite = tape_text(dialect.citations.open) if dialect.citations else None
        self._ignored = {tape_text(marker) for marker in dialect.skipped_markers}
        markers = [
            *filter(None, [self._cite]),
            *sorted(self._ignored),
            *sorted(self._openers | self._closers),
            *self._wrapper,
            *self._unwrapping,
        ]
        self._stops = literals(*markers, *sorted(openers))
        self._calls_unknown_tools = self.accepts_unknown_tools

    def parse_turn(self) -> Parser[None]:
        """Parses the whole output."""
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
        if marker in self._unwrapping and (self._in_reasoning or not self._wrapped):
            self._emit_text(1)  # the newline; the marker after it may have another meaning
        elif marker in self._closers and (self._in_reasoning or self._at_start):
            self._switch_mode(len(marker), thinking=False)
        elif marker in self._openers and self._at_start:
            # Mid-text the marker is a quotation, not an opener; directly after an opener it is a repetition.
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
        """Parses a citation. If it does not parse, its opener is text."""
        markers = self._stops.literals
        if self._citations and (
            yield from self.try_parse(
                self._citations.read_citation(self, self._items, markers, thinking=self._in_reasoning)
            )
        ):
            self._at_start = False
        else:
            self._emit_text(len(marker))

    def _handle_wrapper(self, marker: str) -> Parser[None]:
        """Skips a marker around the text. The opener counts at the start of an answer, the closer after an opener."""
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
        is_plain = False
        for call_format, openers in self._call_formats:
            if call_format.head_only and (self._in_reasoning or not self._at_start):
                continue
            # Objects, lists and code blocks occur in answers, so only the name of a tool makes them calls.
            occurs_in_answers = call_format.head_only or marker.startswith(CODE_FENCE)
            self.accepts_unknown_tools = self._calls_unknown_tools and not occurs_in_answers
            if marker not in openers:
                continue
            is_plain = occurs_in_answers
            if (yield from self.try_parse(call_format.read_calls(self))):
                # A call ends reasoning even if the closer of reasoning is missing.
                self._in_reasoning, self._at_start = False, True
                self.unoffered.settle("text", is_plain=is_plain)  # further calls in the same block
                return True
        self.unoffered.settle("text", is_plain=is_plain)
        return False
