"""Call format with the tool's name in a header, followed by its arguments as one JSON value."""

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

    `before`, the fences and the closer may be missing, and so may `end` if a brace follows. `native_ids`: the header
    is `NAME:NUMBER`, and all of it, `before` included, is the call's own id, which the model expects to see again.
    `id_mark`: marker that may follow the name, before an id that is not used. `name_mark`: marker that follows such an
    id in front of the name.
    """

    end: str
    before: str = ""
    fence: str = ""
    fence_end: str = ""
    native_ids: bool = False
    id_mark: str = ""
    name_mark: str = ""

    @property
    def markers(self) -> Sequence[str]:
        """Markers of the format, openers included."""
        texts = (self.open, self.end, self.close, self.before, self.id_mark, self.name_mark)
        return tuple(text for text in texts if text.strip())

    @property
    def counts_over_conversation(self) -> bool:
        """True if the numbers are part of ids, which are unique in a conversation."""
        return self.native_ids

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses a call, beginning at its opener."""
        tape, tape_text = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.expect(tape_text(self.open))
        if self.name_mark:
            yield from tape.skip_word(tape_text(self.name_mark))
        yield from tape.skip_whitespace()
        prefixed = self.before != "" and (yield from tape.skip_literal(tape_text(self.before)))
        header = (yield from self._read_header(tape)).strip()
        native_id = _NATIVE.fullmatch(header) if self.native_ids else None
        tool = reader.require_tool(native_id["name"] if native_id else header)
        if not reader.is_offered(tool):
            yield from self._expect_arguments(tape)
        reader.begin_call(tool, f"{self.before if prefixed else ''}{header}" if native_id else None)
        yield from self._skip_fence(tape)
        if not self.close or not (yield from tape.matches_here(tape_text(self.close))):
            yield from read_arguments(reader)
        reader.close_item()
        yield from self._skip_tail(reader)

    def _skip_fence(self, tape: Tape) -> Parser[None]:
        yield from tape.skip_whitespace()
        if self.fence:
            yield from tape.skip_literal(self.fence)
        yield from tape.skip_whitespace()

    def _expect_arguments(self, tape: Tape) -> Parser[None]:
        """Raises `MalformedText` unless an object or the closer follows: the header may be that of another format."""
        start = tape.position()
        yield from self._skip_fence(tape)
        if not (yield from tape.matches_here("{")) and not (
            self.close and (yield from tape.matches_here(tape.alphabet.tape_text(self.close)))
        ):
            raise MalformedText("no arguments")
        tape.rewind(start)

    def _read_header(self, tape: Tape) -> Parser[str]:
        """Skips the header with its end, and an id after `id_mark`. Returns the name."""
        tape_text = tape.alphabet.tape_text
        ends = [tape_text(end) for end in (self.id_mark, self.end) if end]
        name = yield from tape.skip_until(literals(*ends, "{", controls=True))
        if self.id_mark and (yield from tape.skip_literal(tape_text(self.id_mark))):
            yield from tape.skip_word(tape_text(self.end))
        elif not (yield from tape.skip_literal(tape_text(self.end))) and tape.peek() != "{":
            raise MalformedText("no end of the name")
        return name

    def _skip_tail(self, reader: TapeReader) -> Parser[None]:
        tape = reader.tape
        mark = tape.mark()
        for literal in filter(None, (self.fence_end.strip(), tape.alphabet.tape_text(self.close))):
            yield from tape.skip_whitespace()
            if (yield from tape.skip_literal(literal, cut=True)):
                mark = tape.position()
            else:  # a fence may be missing before the closer
                tape.rewind(mark)
        tape.release()

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the opener."""
        if tool.kind == "custom":
            return None
        name = grammar.literal_text(tool.model_name + (":" if self.native_ids else ""))
        parts = [
            f"/[a-z0-9]{{10}}/ {grammar.marker_symbol(self.name_mark)}" if self.name_mark else "",
            grammar.marker_symbol(self.before) if self.before else "",
            name,
            "/[0-9]{1,4}/" if self.native_ids else "",
        ]
        parts += [grammar.marker_symbol(self.end), grammar.literal_text(self.fence) if self.fence else "BLANKS"]
        parts += [
            grammar.json_value(tool.accepted_schema),
            grammar.literal_text(self.fence_end) if self.fence_end else "",
        ]
        return " ".join(filter(None, [*parts, grammar.marker_symbol(self.close) if self.close else ""]))

    def write_call(self, tool: ToolSpec, arguments: str, index: int = 0) -> str | None:
        """Writes a call as a model would. `index`: number of calls written before it."""
        if tool.kind == "custom":
            return None
        number = f":{index}" if self.native_ids else ""
        inside = f"{self.fence}{arguments}{self.fence_end}"
        name_mark = f"{index:010d}{self.name_mark}" if self.name_mark else ""
        return f"{self.open}{name_mark}{self.before}{tool.model_name}{number}{self.end}{inside}{self.close}"
