"""Frames with the tool's name in a header, and its arguments as one JSON value behind it."""

import re
from collections.abc import Sequence

from antiphon.harmony.calls.base import NumberedCall
from antiphon.harmony.calls.json_object import read_arguments
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, Tape, literals
from antiphon.harmony.tools import ToolSpec

_NATIVE = re.compile(r"(?P<name>.+):(?P<number>\d{1,6})")


class NamedJsonCall(NumberedCall, frozen=True, kw_only=True):
    """`open before NAME end fence JSON fence_end close`.

    `before` may be missing in front of the name, as may the fences and the closer, and `end` where a brace follows.
    `numbered`: the header is `NAME:NUMBER`, and all of it, `before` included, is the call's own id, which the model
    wants to see again. `id_mark`: an id of no use to us may stand behind the name.
    """

    end: str
    before: str = ""
    fence: str = ""
    fence_end: str = ""
    native_ids: bool = False
    id_mark: str = ""

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        texts = (self.open, self.end, self.close, self.before, self.id_mark)
        return tuple(text for text in texts if text.strip())

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.expect(spell(self.open))
        yield from tape.skip_whitespace()
        prefixed = self.before != "" and (yield from tape.skip_literal(spell(self.before)))
        header = (yield from self._read_header(tape)).strip()
        native = _NATIVE.fullmatch(header) if self.native_ids else None
        offer = reader.require_tool(native["name"] if native else header)
        reader.begin_call(offer, f"{self.before if prefixed else ''}{header}" if native else None)
        yield from tape.skip_whitespace()
        if self.fence:
            yield from tape.skip_literal(self.fence)
        yield from tape.skip_whitespace()
        if not self.close or not (yield from tape.stands_here(spell(self.close))):
            yield from read_arguments(reader)
        reader.close_item()
        yield from self._skip_tail(reader)

    def _read_header(self, tape: Tape) -> Parser[str]:
        """Skip the header and its end; what stands behind an id's mark is passed over."""
        spell = tape.alphabet.tape_text
        marks = [spell(mark) for mark in (self.id_mark, self.end) if mark]
        name = yield from tape.skip_until(literals(*marks, "{", controls=True))
        if self.id_mark and (yield from tape.skip_literal(spell(self.id_mark))):
            yield from tape.skip_word(spell(self.end))
        elif not (yield from tape.skip_literal(spell(self.end))) and tape.peek() != "{":
            raise MalformedText("no end of the name")
        return name

    def _skip_tail(self, reader: TapeReader) -> Parser[None]:
        tape = reader.tape
        mark = tape.mark()
        for literal in filter(
            None, (self.fence_end.strip(), tape.alphabet.tape_text(self.close) if self.close else "")
        ):
            yield from tape.skip_whitespace()
            if (yield from tape.skip_literal(literal, cut=True)):
                mark = tape.position()
            else:  # a fence may be missing before the closer
                tape.rewind(mark)
        tape.release()

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the opener."""
        if offer.kind == "custom":
            return None
        name = grammar.literal_text(offer.model_name + (":" if self.native_ids else ""))
        parts = [
            grammar.marker_symbol(self.before) if self.before else "",
            name,
            "/[0-9]{1,4}/" if self.native_ids else "",
        ]
        parts += [grammar.marker_symbol(self.end), grammar.literal_text(self.fence) if self.fence else "BLANKS"]
        parts += [grammar.json_value(offer.parameters), grammar.literal_text(self.fence_end) if self.fence_end else ""]
        return " ".join(filter(None, [*parts, grammar.marker_symbol(self.close) if self.close else ""]))

    def write_call(self, offer: ToolSpec, arguments: str, place: int = 0) -> str | None:
        """A call as a model would write it; `place`: how many were written before it."""
        if offer.kind == "custom":
            return None
        number = f":{place}" if self.native_ids else ""
        inside = f"{self.fence}{arguments}{self.fence_end}"
        return f"{self.open}{self.before}{offer.model_name}{number}{self.end}{inside}{self.close}"
