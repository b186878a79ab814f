"""Call format of a section: an opener, calls in a row, and a closer."""

from collections.abc import Sequence

from antiphon.harmony.calls.base import CallFormat
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser
from antiphon.harmony.tools import ToolCall, ToolSpec


class CallBlock(CallFormat, frozen=True, kw_only=True):
    """`open call* close`. `aliases`: other openers and closers that models write. The closer may be missing.

    `close` is empty if the model's stop token ends the section.
    """

    calls: tuple[CallFormat, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    padding: str = ""
    """Text written around the calls."""

    @property
    def openers(self) -> Sequence[str]:
        """Markers with which a section can begin. Calls are also accepted without the section around them."""
        return (
            self.open,
            *(alias[0] for alias in self.aliases),
            *(opener for call_format in self.calls for opener in call_format.openers),
        )

    @property
    def markers(self) -> Sequence[str]:
        """Markers of the section and of its calls."""
        return *(marker for pair in self._marker_pairs for marker in pair if marker), *(
            marker for call_format in self.calls for marker in call_format.markers
        )

    @property
    def _marker_pairs(self) -> tuple[tuple[str, str], ...]:
        return (self.open, self.close), *self.aliases

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses the calls, beginning at the opener."""
        tape, tape_text = reader.tape, reader.tape.alphabet.tape_text
        for opener, _ in self._marker_pairs:
            if (yield from tape.skip_literal(tape_text(opener))):
                break
        yield from tape.skip_whitespace()
        yield from self._read_first(reader)
        while not reader.call_failed:
            yield from tape.skip_whitespace()
            if (yield from self._skip_closer(reader)) or not (yield from self._read_next(reader)):
                return

    def _skip_closer(self, reader: TapeReader) -> Parser[bool]:
        for closer in filter(None, (closer for _, closer in self._marker_pairs)):
            if (yield from reader.tape.skip_literal(reader.tape.alphabet.tape_text(closer), cut=True)):
                return True
        return False

    def _read_first(self, reader: TapeReader) -> Parser[None]:
        """Parses the first call, under the caller's mark. Raises `MalformedText` if there is none."""
        for call_format in self.calls:
            start = reader.tape.position()
            try:
                yield from call_format.read_calls(reader)
            except MalformedText:
                if reader.open_call is not None:
                    raise
                reader.tape.rewind(start)
            else:
                return
        raise MalformedText("no call in the section")

    def _read_next(self, reader: TapeReader) -> Parser[bool]:
        """Parses another call. Returns False if there is none here."""
        for call_format in self.calls:
            if (yield from reader.try_parse(call_format.read_calls(reader))):
                return True
        return False

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the opener: one call, and the closer."""
        for call_format in self.calls:
            if (rule := call_format.grammar_rule(tool, grammar)) is not None:
                opener = grammar.marker_symbol(call_format.openers[0])
                return f"BLANKS {opener} {rule} {grammar.after_blanks(self.close)}".rstrip()
        return None

    def write_calls(self, calls: Sequence[ToolCall], num_before: int = 0) -> str | None:
        """Writes a section with these calls. `num_before`: number of calls in the conversation before these."""
        for call_format in self.calls:
            if (text := call_format.write_calls(calls, num_before)) is not None:
                return f"{self.open}{self.padding}{text}{self.padding}{self.close}"
        return None
