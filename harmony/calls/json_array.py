"""Frames that hold all calls of a turn in one JSON array."""

from collections.abc import Sequence

from antiphon.harmony.calls.base import Between, ListFrame
from antiphon.harmony.calls.json_object import JsonFrame, arguments
from antiphon.harmony.grammar import Grammar
from antiphon.harmony.parsing import json_stream
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Malformed, Wait
from antiphon.harmony.tools import Offered


class ArrayFrame(ListFrame, frozen=True, kw_only=True):
    """`open [{"name": …, "arguments": …}, …] close`; `keyed`: the elements are `{NAME: arguments}`.

    The closer may be missing. A single object in place of the array is one call.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    keyed: bool = False

    def call(self, reader: TapeReader) -> Wait[None]:
        """Read one element of the array."""
        tape = reader.tape
        if not self.keyed:
            yield from _object(self).element(reader)
            return
        yield from tape.expect("{")
        yield from tape.blanks()
        reader.begin(reader.offered((yield from json_stream.key(tape))))
        yield from arguments(reader)
        reader.close()
        yield from tape.blanks()
        if not (yield from tape.literal("}")):
            raise Malformed("more than one tool in an element")

    def _head(self, offer: Offered) -> str:
        """An element up to its arguments."""
        return f'{{"{offer.flat}": ' if self.keyed else f'{{"{self.name}": "{offer.flat}", "{self.arguments[0]}": '

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener: an array of one call."""
        if offer.kind == "custom":
            return None
        value = grammar.json(offer.parameters)
        begin = "" if self.bare else grammar.text("[")
        close = f"BLANKS {grammar.marker(self.close)}" if self.close else ""
        return f"{begin} {grammar.text(self._head(offer))} {value} BLANKS {grammar.text('}]')} {close}"

    def one(self, offer: Offered, arguments: str) -> str | None:
        """An element of the array."""
        return None if offer.kind == "custom" else f"{self._head(offer)}{arguments}}}"


class ObjectsFrame(Between, frozen=True, kw_only=True):
    """`open {"name": …, "parameters": …}; {…}`: objects in a row. `open` may be the first one's brace alone."""

    open: str = "{"
    apart: str = "; "
    name: str = "name"
    arguments: tuple[str, ...] = ("parameters", "arguments")

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read the calls from the opener on."""
        tape = reader.tape
        if not self.bare:
            yield from tape.expect(tape.alphabet.spell(self.open))
            yield from tape.blanks()
        yield from _object(self).element(reader)
        while not reader.broken and (yield from reader.attempt(self._another(reader))):
            pass
        yield from self.finish(reader)

    def _another(self, reader: TapeReader) -> Wait[None]:
        tape = reader.tape
        yield from tape.blanks()
        if not (yield from tape.literal(";")):
            yield from tape.literal(",")
        yield from tape.blanks()
        yield from _object(self).element(reader)

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener."""
        if offer.kind == "custom":
            return None
        begin = "" if self.bare else "BLANKS"
        head = f'"{self.name}": "{offer.flat}", "{self.arguments[0]}": '
        brace = "" if self.bare else "{"
        return f"{begin} {grammar.text(brace + head)} {grammar.json(offer.parameters)} BLANKS {grammar.text('}')}"

    def one(self, offer: Offered, arguments: str) -> str | None:
        """One of the objects."""
        head = f'{{"{self.name}": "{offer.flat}", "{self.arguments[0]}": '
        return None if offer.kind == "custom" else f"{head}{arguments}}}"

    def together(self, written: Sequence[str]) -> str:
        """Objects that were written one by one."""
        return f"{'' if self.bare else self.open}{self.apart.join(written)}"


def _object(frame: ArrayFrame | ObjectsFrame) -> JsonFrame:
    """How one object with a name and arguments is read."""
    return JsonFrame(open="", close="", name=frame.name, arguments=frame.arguments, late=frame.bare)
