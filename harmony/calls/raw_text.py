"""Call format of custom tools: raw text between markers, without escapes."""

from antiphon.harmony.calls.base import CallFormat
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, Tape, literals
from antiphon.harmony.tools import ToolSpec


class RawTextCall(CallFormat, frozen=True, kw_only=True):
    """`open head NAME head_end text foot close`, for custom tools.

    The text is verbatim, except for one newline at either end. `foot` counts only if the closer follows, so that the
    text may contain it.
    """

    head: str = "<custom="
    head_end: str = ">"
    foot: str = "</custom>"

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses a call, beginning at its opener."""
        tape = reader.tape
        yield from tape.expect(tape.alphabet.tape_text(self.open))
        yield from tape.skip_whitespace()
        yield from tape.expect(self.head)
        tool = reader.require_tool((yield from tape.skip_word(self.head_end)), "custom")
        if tool.kind != "custom":
            raise MalformedText("not a custom tool")
        reader.begin_call(tool)
        yield from tape.skip_literal("\n")
        yield from self._read_text(reader)
        reader.close_item()

    def _read_text(self, reader: TapeReader) -> Parser[None]:
        tape = reader.tape
        stops = literals("\n" + self.foot, self.foot, controls=True)
        while (yield from tape.wait_more()):
            if count := tape.count_clear(stops):
                reader.take_arguments(count)
            elif foot := (yield from tape.match_literal(stops)):
                if not foot.endswith(self.foot):
                    break  # a control token: the model has begun something else
                if (yield from self._skip_foot(tape, foot)):
                    return
                reader.take_arguments(len(foot))
        raise MalformedText("no end")

    def _skip_foot(self, tape: Tape, foot: str) -> Parser[bool]:
        """Skips `foot` and the closer if both are here. At the natural end of the turn the closer may be missing."""
        mark = tape.mark()
        if (yield from tape.skip_literal(foot)):
            yield from tape.skip_whitespace()
            closed = yield from tape.skip_literal(tape.alphabet.tape_text(self.close))
            if closed or (tape.ended_naturally and not (yield from tape.wait_more())):
                tape.release()
                return True
        tape.rewind(mark)
        tape.release()
        return False

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the opener."""
        if tool.kind != "custom":
            return None
        prefix = grammar.literal_text(f"{self.head}{tool.model_name}{self.head_end}\n")
        text = grammar.custom_input(tool, f"\n{self.foot}")
        return f"BLANKS {prefix} {text} {grammar.after_blanks(self.close)}"

    def write_call(self, tool: ToolSpec, arguments: str) -> str | None:
        """Writes a call as a model would. The arguments are the raw text."""
        if tool.kind != "custom":
            return None
        return f"{self.open}\n{self.head}{tool.model_name}{self.head_end}\n{arguments}\n{self.foot}\n{self.close}"
