"""Frames that hold all calls of a turn in one JSON array."""

from collections.abc import Sequence

from antiphon.harmony.calls.base import DelimitedCall, ListCall
from antiphon.harmony.calls.json_object import JsonCall, read_arguments
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing import json_stream
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser
from antiphon.harmony.tools import ToolSpec


class JsonArrayCall(ListCall, frozen=True, kw_only=True):
    """`open [{"name": …, "arguments": …}, …] close`; `keyed`: the elements are `{NAME: arguments}`.

    The closer may be missing. A single object in place of the array is one call.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    keyed: bool = False

    def read_one_call(self, reader: TapeReader) -> Parser[None]:
        """Read one element of the array."""
        tape = reader.tape
        if not self.keyed:
            yield from _element_format(self).read_element(reader)
            return
        yield from tape.expect("{")
        yield from tape.skip_whitespace()
        reader.begin_call(reader.require_tool((yield from json_stream.skip_key(tape))))
        yield from read_arguments(reader)
        reader.close_item()
        yield from tape.skip_whitespace()
        if not (yield from tape.skip_literal("}")):
            raise MalformedText("more than one tool in an element")

    def _element_head(self, offer: ToolSpec) -> str:
        """An element up to its arguments."""
        return (
            f'{{"{offer.model_name}": '
            if self.keyed
            else f'{{"{self.name}": "{offer.model_name}", "{self.arguments[0]}": '
        )

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the opener: an array of one call."""
        if offer.kind == "custom":
            return None
        value = grammar.json_value(offer.parameters)
        begin = "" if self.head_only else grammar.literal_text("[")
        close = f"BLANKS {grammar.marker_symbol(self.close)}" if self.close else ""
        return f"{begin} {grammar.literal_text(self._element_head(offer))} {value} BLANKS {grammar.literal_text('}]')} {close}"

    def write_call(self, offer: ToolSpec, arguments: str) -> str | None:
        """An element of the array."""
        return None if offer.kind == "custom" else f"{self._element_head(offer)}{arguments}}}"


class JsonSequenceCall(DelimitedCall, frozen=True, kw_only=True):
    """`open {"name": …, "parameters": …}; {…}`: objects in a row. `open` may be the first one's brace alone."""

    open: str = "{"
    separator: str = "; "
    name: str = "name"
    arguments: tuple[str, ...] = ("parameters", "arguments")

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read the calls from the opener on."""
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

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the opener."""
        if offer.kind == "custom":
            return None
        begin = "" if self.head_only else "BLANKS"
        head = f'"{self.name}": "{offer.model_name}", "{self.arguments[0]}": '
        brace = "" if self.head_only else "{"
        return f"{begin} {grammar.literal_text(brace + head)} {grammar.json_value(offer.parameters)} BLANKS {grammar.literal_text('}')}"

    def write_call(self, offer: ToolSpec, arguments: str) -> str | None:
        """One of the objects."""
        head = f'{{"{self.name}": "{offer.model_name}", "{self.arguments[0]}": '
        return None if offer.kind == "custom" else f"{head}{arguments}}}"

    def join_calls(self, written: Sequence[str]) -> str:
        """Objects that were written one by one."""
        return f"{'' if self.head_only else self.open}{self.separator.join(written)}"


def _element_format(frame: JsonArrayCall | JsonSequenceCall) -> JsonCall:
    """How one object with a name and arguments is read."""
    return JsonCall(open="", close="", name=frame.name, arguments=frame.arguments, needs_arguments=frame.head_only)
