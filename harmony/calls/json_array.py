"""Call formats that hold all calls of a turn in one JSON array, or in JSON objects in a row."""

from collections.abc import Sequence

from antiphon.harmony.calls.base import CallFormat, ListCall
from antiphon.harmony.calls.json_object import JsonCall, read_arguments, write_head
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing import json_stream
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser
from antiphon.harmony.tools import ToolSpec


class JsonArrayCall(ListCall, frozen=True, kw_only=True):
    """`open [{"name": …, "arguments": …}, …] close`; `keyed`: the elements are `{NAME: arguments}`.

    The closer may be missing. Objects may follow each other without the array; `brackets` tells which is written.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    keyed: bool = False

    @property
    def allows_bare_calls(self) -> bool:
        """True if a closer ends the calls, so that they need no brackets."""
        return self.close != ""

    def read_one_call(self, reader: TapeReader) -> Parser[None]:
        """Parses one element of the array."""
        tape = reader.tape
        if not self.keyed:
            yield from _element_format(self).read_element(reader)
            return
        yield from tape.expect("{")
        yield from tape.skip_whitespace()
        reader.begin_call(reader.require_tool((yield from json_stream.skip_key(tape))))
        yield from read_arguments(reader)
        reader.close_item()
        yield from json_stream.skip_comma(tape)
        if not (yield from tape.skip_literal("}")):
            raise MalformedText("more than one tool in an element")

    def _element_head(self, tool: ToolSpec) -> str:
        """Returns the text of an element up to its arguments."""
        return f'{{"{tool.model_name}": ' if self.keyed else write_head(self.name, self.arguments, tool)

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the opener: a list of one call."""
        if tool.kind == "custom":
            return None
        value = grammar.json_value(tool.accepted_schema)
        begin, end = map(grammar.optional_text, self.brackets_around)
        head = grammar.literal_text(self._element_head(tool))
        brace = grammar.literal_text("}")
        return (
            f"{begin} {head} {value} BLANKS {brace} {end if self.brackets else ''} {grammar.after_blanks(self.close)}"
        )

    def write_call(self, tool: ToolSpec, arguments: str) -> str | None:
        """Writes an element of the array."""
        return None if tool.kind == "custom" else f"{self._element_head(tool)}{arguments}}}"


class JsonSequenceCall(CallFormat, frozen=True, kw_only=True):
    """`open {"name": …, "parameters": …}; {…}`: objects in a row. `open` may be the first brace itself."""

    open: str = "{"
    separator: str = "; "
    name: str = "name"
    arguments: tuple[str, ...] = ("parameters", "arguments")

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses the calls, beginning at the opener."""
        tape = reader.tape
        if not self.head_only:
            yield from tape.expect(tape.alphabet.tape_text(self.open))
            yield from tape.skip_whitespace()
        yield from _element_format(self).read_element(reader)
        while not reader.call_failed and (yield from reader.try_parse(self._read_next(reader))):
            pass
        yield from self.skip_closer(reader)

    def _read_next(self, reader: TapeReader) -> Parser[None]:
        tape = reader.tape
        yield from tape.skip_whitespace()
        if not (yield from tape.skip_literal(";")):
            yield from tape.skip_literal(",")
        yield from tape.skip_whitespace()
        yield from _element_format(self).read_element(reader)

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the opener."""
        if tool.kind == "custom":
            return None
        text = write_head(self.name, self.arguments, tool)
        gap, head = ("", text[1:]) if self.head_only else ("BLANKS", text)
        value = f"{grammar.json_value(tool.accepted_schema)} BLANKS {grammar.literal_text('}')}"
        return f"{gap} {grammar.literal_text(head)} {value}"

    def write_call(self, tool: ToolSpec, arguments: str) -> str | None:
        """Writes an object of the row."""
        return None if tool.kind == "custom" else f"{write_head(self.name, self.arguments, tool)}{arguments}}}"

    def join_calls(self, written: Sequence[str]) -> str:
        """Joins objects that were written one by one."""
        return f"{'' if self.head_only else self.open}{self.separator.join(written)}"


def _element_format(call_format: JsonArrayCall | JsonSequenceCall) -> JsonCall:
    """Returns the format of one object with a name and arguments."""
    name, arguments, is_bare = call_format.name, call_format.arguments, call_format.head_only
    return JsonCall(open="", name=name, arguments=arguments, needs_arguments=is_bare)
