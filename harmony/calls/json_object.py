"""Call format of one JSON object with the tool's name and its arguments.

A format declares its marker texts together with the one way of parsing them. Prompt instructions for the model are
outside this module.
"""

from collections.abc import Sequence

from antiphon.harmony.calls.base import CallFormat
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing import json_stream
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, Tape, TapeMark
from antiphon.harmony.tools import INPUT, ToolSpec

_FUNCTION = "function"


class JsonCall(CallFormat, frozen=True, kw_only=True):
    """`open {"name": …, "arguments": …} close`: members in any order, others skipped.

    The call is complete when its arguments are: a missing brace or closer after them does no harm. Some models write
    the object as in the API, `{"type": "function", "function": {"name": …, "arguments": …}}`.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    needs_arguments: bool = False
    """Begins the call only at its arguments, because any object may have a name. An object with only a name is a
    call."""

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses a call, beginning at its opener."""
        tape, tape_text = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.expect(tape_text(self.open))
        yield from tape.skip_whitespace()
        yield from tape.expect("{")
        yield from self.read_members(reader)
        reader.close_item()
        yield from _skip_tail(tape, tape_text(self.close))

    def read_element(self, reader: TapeReader) -> Parser[None]:
        """Parses a call that is an element of an array: the object without markers."""
        yield from reader.tape.expect("{")
        yield from self.read_members(reader)
        reader.close_item()
        yield from _skip_rest_of_object(reader.tape)

    def read_members(self, reader: TapeReader, *, inside: bool = False) -> Parser[None]:
        """Parses members until the name and the arguments are read, or the object ends.

        `inside`: the object is the value of a `function` member.
        """
        tape = reader.tape
        arguments_mark: TapeMark | None = None
        tool: ToolSpec | None = None
        has_other_members = False
        yield from tape.skip_whitespace()
        while not (yield from tape.skip_literal("}")):
            key = yield from json_stream.skip_key(tape)
            if tool is None and key == self.name:
                tool = reader.require_tool((yield from json_stream.skip_name(tape)))
                if arguments_mark is not None or not self.needs_arguments:
                    reader.begin_call(tool)
                if arguments_mark is not None:
                    yield from _emit_earlier_arguments(reader, arguments_mark)
                    return
            elif tool is not None and key in self.arguments:
                if self.needs_arguments:
                    reader.begin_call(tool)
                yield from read_arguments(reader)
                return
            elif tool is None and key == _FUNCTION and not inside and (yield from tape.skip_literal("{")):
                yield from self.read_members(reader, inside=True)
                yield from _skip_rest_of_object(tape)
                return
            else:
                has_other_members |= key not in self.arguments
                arguments_mark = arguments_mark or (tape.position() if key in self.arguments else None)
                yield from json_stream.read_value(tape, tape.skip)
            yield from json_stream.skip_comma(tape)
        if tool is None or (self.needs_arguments and has_other_members):
            raise MalformedText("no name")
        if self.needs_arguments:
            reader.begin_call(tool)

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the opener."""
        if tool.kind == "custom":
            return None
        prefix = grammar.literal_text(write_head(self.name, self.arguments, tool))
        value = f"{grammar.json_value(tool.accepted_schema)} BLANKS {grammar.literal_text('}')}"
        return f"BLANKS {prefix} {value} {grammar.after_blanks(self.close)}"

    def write_call(self, tool: ToolSpec, arguments: str) -> str | None:
        """Writes a call as a model would."""
        if tool.kind == "custom":
            return None
        return f"{self.open}\n{write_head(self.name, self.arguments, tool)}{arguments}}}\n{self.close}"


def write_head(name: str, arguments: Sequence[str], tool: ToolSpec) -> str:
    """Returns the text of an object up to its arguments. `arguments`: names of their member, the usual one first."""
    return f'{{"{name}": "{tool.model_name}", "{arguments[0]}": '


def _emit_earlier_arguments(reader: TapeReader, mark: TapeMark) -> Parser[None]:
    """Emits the arguments that preceded the name, now that the tool is known."""
    tape = reader.tape
    resume = tape.index
    tape.rewind(mark)
    yield from read_arguments(reader)
    tape.skip(resume - tape.index)


def _skip_tail(tape: Tape, close: str) -> Parser[None]:
    """Skips the remainder of the call after its arguments. Anything else stays, as text."""
    yield from _skip_rest_of_object(tape)
    yield from tape.skip_whitespace()
    mark = tape.mark()
    while (yield from tape.skip_literal("}")):  # a surplus brace is accepted if the closer follows
        yield from tape.skip_whitespace()
    if not (yield from tape.skip_literal(close, cut=True)):
        tape.rewind(mark)
    tape.release()


def _skip_rest_of_object(tape: Tape) -> Parser[None]:
    """Skips the remainder of an object after the arguments."""
    mark = tape.mark()
    try:
        yield from json_stream.skip_other_members(tape)
        yield from tape.skip_literal("}")
    except MalformedText:
        tape.rewind(mark)
    tape.release()


def read_arguments(reader: TapeReader) -> Parser[None]:
    """Emits the JSON value here as arguments of the open call: objects byte for byte, strings as their content."""
    tape = reader.tape
    yield from tape.wait_more()
    if tape.peek() == '"':
        yield from json_stream.read_string(tape, reader.take_arguments, reader.emit_arguments)
    elif reader.open_call is not None and reader.open_call.kind == "custom":
        yield from read_custom_input(reader)
    elif not (yield from tape.skip_literal("null")):
        yield from json_stream.read_value(tape, reader.take_arguments)


def read_custom_input(reader: TapeReader) -> Parser[None]:
    """Emits the text in `{"input": "…"}` and skips other members. Raises `MalformedText` if there is none."""
    tape, found = reader.tape, False
    yield from tape.expect("{")
    yield from tape.skip_whitespace()
    while not (yield from tape.skip_literal("}")):
        key = yield from json_stream.skip_key(tape)
        if key == INPUT and not found and (yield from tape.matches_here('"')):
            yield from json_stream.read_string(tape, reader.take_arguments, reader.emit_arguments)
            found = True
        else:
            yield from json_stream.read_value(tape, tape.skip)
        yield from json_stream.skip_comma(tape)
    if not found:
        raise MalformedText(INPUT)
