"""Calls of custom tools as raw text between markers, without escapes."""

from antiphon.harmony.calls.base import DelimitedCall
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, Tape, literals
from antiphon.harmony.tools import ToolSpec

_LINE = "\n"


class RawTextCall(DelimitedCall, frozen=True, kw_only=True):
    """`open head NAME head_end text foot close`, for custom tools.

    The text is as it stands, but for one newline at either end. Its foot counts only where the closer follows, so that
    the text may hold one.
    """

    head: str = "<custom="
    head_end: str = ">"
    foot: str = "</custom>"

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read a call from its opener on."""
        tape = reader.tape
        yield from tape.expect(tape.alphabet.tape_text(self.open))
        yield from tape.skip_whitespace()
        yield from tape.expect(self.head)
        offer = reader.require_tool((yield from tape.skip_word(self.head_end)))
        if offer.kind != "custom":
            raise MalformedText("not a custom tool")
        reader.begin_call(offer)
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
                    break  # a control token: the model has gone elsewhere
                if (yield from self._skip_foot(tape, foot)):
                    return
                reader.take_arguments(len(foot))
        raise MalformedText("no end")

    def _skip_foot(self, tape: Tape, foot: str) -> Parser[bool]:
        """Skip the foot and the closer if both stand here. A turn that ends after the foot needs no closer."""
        mark = tape.mark()
        if (yield from tape.skip_literal(foot)):
            yield from tape.skip_whitespace()
            closed = yield from tape.skip_literal(tape.alphabet.tape_text(self.close))
            if closed or (tape.natural and not (yield from tape.wait_more())):
                tape.release()
                return True
        tape.rewind(mark)
        tape.release()
        return False

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the opener."""
        if offer.kind != "custom":
            return None
        head = grammar.literal_text(f"{self.head}{offer.model_name}{self.head_end}\n")
        return f"BLANKS {head} {grammar.custom_input(offer, f'{_LINE}{self.foot}')} {self._closer_rule(grammar)}"

    def _closer_rule(self, grammar: GrammarBuilder) -> str:
        return f"BLANKS {grammar.marker_symbol(self.close)}" if self.close else ""

    def write_call(self, offer: ToolSpec, arguments: str) -> str | None:
        """A call as a model would write it: the arguments are its raw text."""
        if offer.kind != "custom":
            return None
        return f"{self.open}\n{self.head}{offer.model_name}{self.head_end}\n{arguments}\n{self.foot}\n{self.close}"
