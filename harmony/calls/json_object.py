"""Frames whose arguments are one JSON value, or raw text.

Each class is a declaration of marker texts together with the one way of reading them. How a model is told about them
is not known here.
"""

from antiphon.harmony.calls.base import INPUT, Between
from antiphon.harmony.grammar import Grammar
from antiphon.harmony.parsing import json_stream
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Malformed, Mark, Tape, Wait, stops_at
from antiphon.harmony.tools import Offered

_LINE = "\n"
_FUNCTION = "function"


class JsonFrame(Between, frozen=True, kw_only=True):
    """`open {"name": …, "arguments": …} close`: members in any order, others passed over.

    The call is whole when its arguments are: a missing brace or closer after them does no harm. Some models write the
    object as the API has it, `{"type": "function", "function": {"name": …, "arguments": …}}`.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    late: bool = False
    """Whether it is a call only once its arguments are seen: an object with a name may be anything."""

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.spell
        yield from tape.expect(spell(self.open))
        yield from tape.blanks()
        yield from tape.expect("{")
        yield from self.members(reader)
        reader.close()
        yield from _tail(tape, spell(self.close))

    def element(self, reader: TapeReader) -> Wait[None]:
        """Read a call that is an element of an array: the object alone."""
        yield from reader.tape.expect("{")
        yield from self.members(reader)
        reader.close()
        yield from _rest(reader.tape)

    def members(self, reader: TapeReader, *, inside: bool = False) -> Wait[None]:
        """Read up to where both the name and the arguments are known, or to the end of the object.

        `inside`: it is the object around the name and the arguments alone.
        """
        tape = reader.tape
        held: Mark | None = None
        offer: Offered | None = None
        other = False
        yield from tape.blanks()
        while not (yield from tape.literal("}")):
            key = yield from json_stream.key(tape)
            if key == self.name and offer is None:
                offer = reader.offered((yield from json_stream.name(tape)))
                if held is not None or not self.late:
                    reader.begin(offer)
                if held is not None:
                    yield from _again(reader, held)
                    return
            elif key in self.arguments and offer is not None:
                if self.late:
                    reader.begin(offer)
                yield from arguments(reader)
                return
            elif key == _FUNCTION and not inside and offer is None and (yield from tape.literal("{")):
                yield from self.members(reader, inside=True)
                yield from _rest(tape)
                return
            else:
                other = other or key not in self.arguments
                held = tape.place() if key in self.arguments and held is None else held
                yield from json_stream.value(tape, tape.skip)
            yield from json_stream.comma(tape)
        if offer is None or (self.late and other):
            raise Malformed("no name")
        if self.late:
            reader.begin(offer)

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener."""
        if offer.kind == "custom":
            return None
        head = grammar.text(f'{{"{self.name}": "{offer.flat}", "{self.arguments[0]}": ')
        value = f"{grammar.json(offer.parameters)} BLANKS {grammar.text('}')}"
        return f"BLANKS {head} {value} {f'BLANKS {grammar.marker(self.close)}' if self.close else ''}"

    def one(self, offer: Offered, arguments: str) -> str | None:
        """A call as a model would write it."""
        if offer.kind == "custom":
            return None
        call = f'{{"{self.name}": "{offer.flat}", "{self.arguments[0]}": {arguments}}}'
        return f"{self.open}\n{call}\n{self.close}"


def _again(reader: TapeReader, mark: Mark) -> Wait[None]:
    """Say the arguments that came before the name, now that it is known whose they are."""
    tape = reader.tape
    resume = tape.pos
    tape.rewind(mark)
    yield from arguments(reader)
    tape.skip(resume - tape.pos)


def _tail(tape: Tape, close: str) -> Wait[None]:
    """Skip what is left of the frame after the arguments; what is none of it is text."""
    yield from _rest(tape)
    yield from tape.blanks()
    mark = tape.mark()
    while (yield from tape.literal("}")):  # one too many is forgiven where the closer follows
        yield from tape.blanks()
    if not (yield from tape.literal(close, cut=True)):
        tape.rewind(mark)
    tape.release()


def _rest(tape: Tape) -> Wait[None]:
    """Skip what is left of an object after the arguments."""
    mark = tape.mark()
    try:
        yield from tape.blanks()
        while (yield from tape.literal(",")):
            yield from json_stream.key(tape)
            yield from json_stream.value(tape, tape.skip)
            yield from tape.blanks()
        yield from tape.literal("}")
    except Malformed:
        tape.rewind(mark)
    tape.release()


def arguments(reader: TapeReader) -> Wait[None]:
    """Say the JSON value here as the arguments of the open call: objects byte for byte, strings as what they hold."""
    tape = reader.tape
    yield from tape.more()
    if tape.peek() == '"':
        yield from json_stream.string(tape, reader.arguments, reader.make)
    elif reader.call is not None and reader.call.kind == "custom":
        yield from custom_input(reader)
    elif not (yield from tape.literal("null")):
        yield from json_stream.value(tape, reader.arguments)


def custom_input(reader: TapeReader) -> Wait[None]:
    """Say the text in `{"input": "…"}`; other members are passed over. Raises `Malformed` if there is none."""
    tape, found = reader.tape, False
    yield from tape.expect("{")
    yield from tape.blanks()
    while not (yield from tape.literal("}")):
        key = yield from json_stream.key(tape)
        if key == INPUT and not found and (yield from tape.sees('"')):
            yield from json_stream.string(tape, reader.arguments, reader.make)
            found = True
        else:
            yield from json_stream.value(tape, tape.skip)
        yield from json_stream.comma(tape)
    if not found:
        raise Malformed(INPUT)


class RawFrame(Between, frozen=True, kw_only=True):
    """`open head NAME head_end text foot close`, for custom tools.

    The text is as it stands, but for one newline at either end. Its foot counts only where the closer follows, so that
    the text may hold one.
    """

    head: str = "<custom="
    head_end: str = ">"
    foot: str = "</custom>"

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read a call from its opener on."""
        tape = reader.tape
        yield from tape.expect(tape.alphabet.spell(self.open))
        yield from tape.blanks()
        yield from tape.expect(self.head)
        offer = reader.offered((yield from tape.word(self.head_end)))
        if offer.kind != "custom":
            raise Malformed("not a custom tool")
        reader.begin(offer)
        yield from tape.literal("\n")
        yield from self._text(reader)
        reader.close()

    def _text(self, reader: TapeReader) -> Wait[None]:
        tape = reader.tape
        stops = stops_at("\n" + self.foot, self.foot, controls=True)
        while (yield from tape.more()):
            if count := tape.clear(stops):
                reader.arguments(count)
            elif foot := (yield from tape.at(stops)):
                if not foot.endswith(self.foot):
                    break  # a control token: the model has gone elsewhere
                if (yield from self._ends(tape, foot)):
                    return
                reader.arguments(len(foot))
        raise Malformed("no end")

    def _ends(self, tape: Tape, foot: str) -> Wait[bool]:
        """Skip the foot and the closer if both stand here. A turn that ends after the foot needs no closer."""
        mark = tape.mark()
        if (yield from tape.literal(foot)):
            yield from tape.blanks()
            closed = yield from tape.literal(tape.alphabet.spell(self.close))
            if closed or (tape.natural and not (yield from tape.more())):
                tape.release()
                return True
        tape.rewind(mark)
        tape.release()
        return False

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener."""
        if offer.kind != "custom":
            return None
        head = grammar.text(f"{self.head}{offer.flat}{self.head_end}\n")
        return f"BLANKS {head} {grammar.raw(offer, f'{_LINE}{self.foot}')} {self._end(grammar)}"

    def _end(self, grammar: Grammar) -> str:
        return f"BLANKS {grammar.marker(self.close)}" if self.close else ""

    def one(self, offer: Offered, arguments: str) -> str | None:
        """A call as a model would write it: the arguments are its raw text."""
        if offer.kind != "custom":
            return None
        return f"{self.open}\n{self.head}{offer.flat}{self.head_end}\n{arguments}\n{self.foot}\n{self.close}"
