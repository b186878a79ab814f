"""The frame whose arguments are a tree of elements, named after the parameters: MiniMax M3's.

What an element holds is told by its schema, and where that is silent by what stands in it: other elements, or text.
What was said is never revised: strings are said as they come, everything else when its element closes.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.harmony.calls.base import INPUT, Between, parameters
from antiphon.harmony.calls.xml_tag_values import named, whole
from antiphon.harmony.grammar import Grammar
from antiphon.harmony.parsing import schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Malformed, Wait, stops_at
from antiphon.harmony.tools import Offered

DEEPEST = 32
_NAME = re.compile(r"[^\s<>/=\ud800-\udfff]{1,128}")
_ITEM = "item"


class ElementsFrame(Between, frozen=True, kw_only=True):
    """`mark<invoke name="NAME"> mark<key>VALUE mark</key> … mark</invoke>`: a mark stands before each tag.

    A value is text, or elements of its own: `item` for those of a list. Lists and objects may also be JSON.
    """

    open: str = ""
    mark: str

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin."""
        return (f"{self.mark}<invoke",)

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return (*self.openers, f"{self.mark}</invoke>", self.mark)

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.spell
        yield from tape.expect(spell(self.openers[0]))
        yield from tape.expect(" name=")
        offer = reader.offered(named((yield from tape.word(">")))[0])
        reader.begin(offer)
        if offer.kind == "custom":
            yield from self._custom(reader)
        else:
            root = offer.parameters or {}
            yield from _Tree(reader, spell(self.mark), root).members("invoke", root)
        reader.close()

    def _custom(self, reader: TapeReader) -> Wait[None]:
        """The text of the one parameter there is."""
        tape, mark = reader.tape, reader.tape.alphabet.spell(self.mark)
        yield from tape.blanks()
        yield from tape.expect(f"{mark}<{INPUT}>")
        yield from _text(reader, f"{mark}</{INPUT}>", reader.arguments)
        yield from tape.blanks()
        yield from tape.expect(f"{mark}</invoke>")

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener: the parameters in the schema's order, the required ones always."""
        sides = []
        for name, part, needed in parameters(offer):
            if not _NAME.fullmatch(name):
                return None
            tag = f"{grammar.marker(self.mark)} {grammar.text(f'<{name}>')}"
            side = f"{tag} {self._value(name, part, offer, grammar)}"
            sides.append(side if needed else f"({side})?")
        head = grammar.text(f' name="{offer.flat}">')
        return " ".join([head, *sides, grammar.marker(self.mark), grammar.text("</invoke>")])

    def _value(self, name: str, part: object, offer: Offered, grammar: Grammar) -> str:
        """A value of this schema, and its closing tag."""
        close = f"{grammar.marker(self.mark)} {grammar.text(f'</{name}>')}"
        stop = f"{self.mark}</{name}>"
        if offer.kind == "custom":
            return grammar.raw(offer, stop)
        root = offer.parameters or {}
        own, allowed = schema_values.resolved(part, root), schema_values.types(part, root)
        if allowed == schema_values.TEXT and isinstance(choices := own.get("enum"), list) and choices:
            return f"({' | '.join(grammar.text(str(choice)) for choice in choices)}) {close}"
        if not allowed or "string" in allowed:
            return (
                grammar.held(own, stop)
                if allowed == schema_values.TEXT
                else grammar.until(stop, head=[f"{self.mark}<"])
            )
        return f"{grammar.json(schema_values.standing(own, root))} {close}"

    def one(self, offer: Offered, arguments: str) -> str | None:
        """A call as a model would write it, but for lists and objects, which are told as JSON."""
        members = {INPUT: arguments} if offer.kind == "custom" else json.loads(arguments or "{}")
        tags = "".join(
            f"{self.mark}<{name}>{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            f"{self.mark}</{name}>"
            for name, value in members.items()
        )
        return f'{self.openers[0]} name="{offer.flat}">{tags}{self.mark}</invoke>'


class _Tree:
    """Says the elements of one call as JSON."""

    def __init__(self, reader: TapeReader, mark: str, root: Mapping[str, Any]) -> None:
        self._reader, self._mark, self._root = reader, mark, root

    def members(self, name: str, schema: object, depth: int = 0) -> Wait[None]:
        """Read elements up to the closing tag of what they stand in, and say them as an object's members."""
        reader, tape = self._reader, self._reader.tape
        parts = schema_values.resolved(schema, self._root).get("properties")
        said: set[str] = set()
        yield from tape.blanks()
        while not (yield from tape.literal(f"{self._mark}</{name}>")):
            key = yield from self._tag()
            if key in said:
                yield from _text(reader, f"{self._mark}</{key}>", tape.skip)
            else:
                reader.make(("{" if not said else ", ") + schema_values.quote(key) + ": ")
                yield from self._value(key, parts.get(key) if isinstance(parts, Mapping) else None, depth + 1)
            said.add(key)
            yield from tape.blanks()
        if said or depth:
            reader.make("}" if said else "{}")

    def _items(self, name: str, schema: object, depth: int) -> Wait[None]:
        """Read elements as those of a list."""
        reader, tape = self._reader, self._reader.tape
        part = schema_values.resolved(schema, self._root).get("items")
        first = True
        while not (yield from tape.literal(f"{self._mark}</{name}>")):
            key = yield from self._tag()
            reader.make("[" if first else ", ")
            yield from self._value(key, part, depth + 1)
            first = False
            yield from tape.blanks()
        reader.make("[]" if first else "]")

    def _tag(self) -> Wait[str]:
        """Skip an opening tag and return its name. Raises `Malformed`."""
        tape = self._reader.tape
        yield from tape.expect(f"{self._mark}<")
        name = yield from tape.word(">")
        if not _NAME.fullmatch(name):
            raise Malformed(name)
        return name

    def _value(self, name: str, schema: object, depth: int) -> Wait[None]:
        """Read what stands in an element, and its closing tag."""
        reader, tape = self._reader, self._reader.tape
        if depth > DEEPEST:
            raise Malformed("too deep")
        allowed, close = schema_values.types(schema, self._root), f"{self._mark}</{name}>"
        if allowed != schema_values.TEXT and (yield from self._holds_elements()):
            yield from tape.blanks()
            listed = "object" not in allowed and (yield from tape.sees(f"{self._mark}<{_ITEM}>"))
            if "array" in allowed or listed:
                yield from self._items(name, schema, depth)
            else:
                yield from self.members(name, schema, depth)
            return
        yield from tape.more()
        if schema_values.streams(allowed, tape.peek()):
            reader.make('"')
            yield from _text(
                reader, close, lambda count: reader.make(schema_values.quote(tape.ahead(count))[1:-1], count)
            )
            reader.make('"')
        else:
            text = yield from whole(reader, lambda take: _text(reader, close, take))
            reader.make(schema_values.cast(text, allowed))

    def _holds_elements(self) -> Wait[bool]:
        """Whether an element stands here, behind blanks, and not the end of this one; nothing is skipped."""
        tape = self._reader.tape
        mark = tape.mark()
        yield from tape.blanks()
        found = (yield from tape.sees(f"{self._mark}<")) and not (yield from tape.sees(f"{self._mark}</"))
        tape.rewind(mark)
        tape.release()
        return found


def _text(reader: TapeReader, close: str, take: Callable[[int], None]) -> Wait[None]:
    """Give `take` the lengths of a text's pieces, up to its closing tag, which is skipped. Raises `Malformed`."""
    tape = reader.tape
    stops = stops_at(close, controls=True)
    while (yield from tape.more()):
        if count := tape.clear(stops):
            take(count)
        elif stop := (yield from tape.at(stops)):
            if stop == close:
                tape.skip(len(close))
                return
            if stop != close[0]:
                break
            take(1)
    raise Malformed("no end")
