"""Frames whose arguments are one JSON value, or raw text.

Each class is a declaration of marker texts together with the one way of reading them. How a model is told about them
is not known here.
"""

from antiphon.harmony.calls.base import DelimitedCall
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing import json_stream
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, Tape, TapeMark
from antiphon.harmony.tools import INPUT, ToolSpec

_LINE = "\n"
_FUNCTION = "function"


class JsonCall(DelimitedCall, frozen=True, kw_only=True):
    """`open {"name": …, "arguments": …} close`: members in any order, others passed over.

    The call is whole when its arguments are: a missing brace or closer after them does no harm. Some models write the
    object as the API has it, `{"type": "function", "function": {"name": …, "arguments": …}}`.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    needs_arguments: bool = False
    """Whether it is a call only once its arguments are seen: an object with a name may be anything."""

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.expect(spell(self.open))
        yield from tape.skip_whitespace()
        yield from tape.expect("{")
        yield from self.read_members(reader)
        reader.close_item()
        yield from _skip_tail(tape, spell(self.close))

    def read_element(self, reader: TapeReader) -> Parser[None]:
        """Read a call that is an element of an array: the object alone."""
        yield from reader.tape.expect("{")
        yield from self.read_members(reader)
        reader.close_item()
        yield from _skip_rest_of_object(reader.tape)

    def read_members(self, reader: TapeReader, *, inside: bool = False) -> Parser[None]:
        """Read up to where both the name and the arguments are known, or to the end of the object.

        `inside`: it is the object around the name and the arguments alone.
        """
        tape = reader.tape
        held: TapeMark | None = None
        offer: ToolSpec | None = None
        other = False
        yield from tape.skip_whitespace()
        while not (yield from tape.skip_literal("}")):
            key = yield from json_stream.skip_key(tape)
            if key == self.name and offer is None:
                offer = reader.require_tool((yield from json_stream.skip_name(tape)))
                if held is not None or not self.needs_arguments:
                    reader.begin_call(offer)
                if held is not None:
                    yield from _emit_earlier_arguments(reader, held)
                    return
            elif key in self.arguments and offer is not None:
                if self.needs_arguments:
                    reader.begin_call(offer)
                yield from read_arguments(reader)
                return
            elif key == _FUNCTION and not inside and offer is None and (yield from tape.skip_literal("{")):
                yield from self.read_members(reader, inside=True)
                yield from _skip_rest_of_object(tape)
                return
            else:
                other = other or key not in self.arguments
                held = tape.position() if key in self.arguments and held is None else held
                yield from json_stream.read_value(tape, tape.skip)
            yield from json_stream.skip_comma(tape)
        if offer is None or (self.needs_arguments and other):
            raise MalformedText("no name")
        if self.needs_arguments:
            reader.begin_call(offer)

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the opener."""
        if offer.kind == "custom":
            return None
        head = grammar.literal_text(f'{{"{self.name}": "{offer.model_name}", "{self.arguments[0]}": ')
        value = f"{grammar.json_value(offer.parameters)} BLANKS {grammar.literal_text('}')}"
        return f"BLANKS {head} {value} {f'BLANKS {grammar.marker_symbol(self.close)}' if self.close else ''}"

    def write_call(self, offer: ToolSpec, arguments: str) -> str | None:
        """A call as a model would write it."""
        if offer.kind == "custom":
            return None
        call = f'{{"{self.name}": "{offer.model_name}", "{self.arguments[0]}": {arguments}}}'
        return f"{self.open}\n{call}\n{self.close}"


def _emit_earlier_arguments(reader: TapeReader, mark: TapeMark) -> Parser[None]:
    """Say the arguments that came before the name, now that it is known whose they are."""
    tape = reader.tape
    resume = tape.index
    tape.rewind(mark)
    yield from read_arguments(reader)
    tape.skip(resume - tape.index)


def _skip_tail(tape: Tape, close: str) -> Parser[None]:
    """Skip what is left of the frame after the arguments; what is none of it is text."""
    yield from _skip_rest_of_object(tape)
    yield from tape.skip_whitespace()
    mark = tape.mark()
    while (yield from tape.skip_literal("}")):  # one too many is forgiven where the closer follows
        yield from tape.skip_whitespace()
    if not (yield from tape.skip_literal(close, cut=True)):
        tape.rewind(mark)
    tape.release()


def _skip_rest_of_object(tape: Tape) -> Parser[None]:
    """Skip what is left of an object after the arguments."""
    mark = tape.mark()
    try:
        yield from tape.skip_whitespace()
        while (yield from tape.skip_literal(",")):
            yield from json_stream.skip_key(tape)
            yield from json_stream.read_value(tape, tape.skip)
            yield from tape.skip_whitespace()
        yield from tape.skip_literal("}")
    except MalformedText:
        tape.rewind(mark)
    tape.release()


def read_arguments(reader: TapeReader) -> Parser[None]:
    """Say the JSON value here as the arguments of the open call: objects byte for byte, strings as what they hold."""
    tape = reader.tape
    yield from tape.wait_more()
    if tape.peek() == '"':
        yield from json_stream.read_string(tape, reader.take_arguments, reader.emit_arguments)
    elif reader.open_call is not None and reader.open_call.kind == "custom":
        yield from read_custom_input(reader)
    elif not (yield from tape.skip_literal("null")):
        yield from json_stream.read_value(tape, reader.take_arguments)


def read_custom_input(reader: TapeReader) -> Parser[None]:
    """Say the text in `{"input": "…"}`; other members are passed over. Raises `Malformed` if there is none."""
    tape, found = reader.tape, False
    yield from tape.expect("{")
    yield from tape.skip_whitespace()
    while not (yield from tape.skip_literal("}")):
        key = yield from json_stream.skip_key(tape)
        if key == INPUT and not found and (yield from tape.stands_here('"')):
            yield from json_stream.read_string(tape, reader.take_arguments, reader.emit_arguments)
            found = True
        else:
            yield from json_stream.read_value(tape, tape.skip)
        yield from json_stream.skip_comma(tape)
    if not found:
        raise MalformedText(INPUT)
