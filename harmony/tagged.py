"""Frames whose arguments are key and value in tags, put into JSON as they come.

What was said of the arguments is never revised: strings are said as they are read, everything else once its end is
seen. A value may hold any of the tags: one counts only where what follows it goes on as a call does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from harmony import cast
from harmony.frames import INPUT
from harmony.grammar import Grammar
from harmony.lexer import Malformed, Stops, Tape, Wait
from harmony.reader import TapeReader
from harmony.tools import Offered

_LINE = "\n"


class TaggedFrame(Struct, frozen=True, kw_only=True):
    """`open head NAME end (key NAME end value value_end)* foot close`; open and value_end may be missing.

    Of a value, one newline at either end belongs to the tags. Where value_end is missing, a new line ends the value.
    """

    open: str
    close: str
    head: str
    foot: str
    key: str
    value_end: str
    end: str = ">"

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin."""
        return self.open, self.head

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return self.open, self.close, self.head, self.foot, self.key, self.value_end

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.spell
        yield from tape.literal(spell(self.open))
        yield from tape.blanks()
        yield from tape.expect(spell(self.head))
        offer = reader.offered((yield from tape.word(self.end)))
        reader.begin(offer)
        values = _Values(reader, self, offer)
        while not (yield from self._over(tape)):
            yield from tape.expect(spell(self.key))
            yield from values.read((yield from tape.word(self.end)))
        values.end()
        reader.close()
        yield from tape.blanks()
        yield from tape.literal(spell(self.close), cut=True)

    def _over(self, tape: Tape) -> Wait[bool]:
        """Skip the foot, or see the closer that may stand in its place."""
        yield from tape.blanks()
        spell = tape.alphabet.spell
        return (yield from tape.literal(spell(self.foot))) or (yield from tape.sees(spell(self.close)))

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener: the parameters in the schema's order, the required ones always."""
        schema = offer.parameters or {}
        properties = schema.get("properties") if offer.kind == "function" else {INPUT: {"type": "string"}}
        required = schema.get("required") if offer.kind == "function" else [INPUT]
        sides = []
        for name, part in (properties if isinstance(properties, Mapping) else {}).items():
            side = f"{grammar.text(f'{self.key}{name}{self.end}{_LINE}')} {self._value(part, offer, grammar)}"
            sides.append(side if isinstance(required, list) and name in required else f"({side})?")
        head, foot = grammar.text(f"{self.head}{offer.flat}{self.end}\n"), grammar.text(self.foot)
        return f"BLANKS {head} {' '.join(sides)} {foot} BLANKS {grammar.marker(self.close)}"

    def _value(self, schema: object, offer: Offered, grammar: Grammar) -> str:
        """A value of this schema, and its closing tag."""
        end = f"\n{self.value_end}\n"
        if offer.kind == "custom":
            return grammar.raw(offer, end)
        root = offer.parameters or {}
        allowed = cast.types(schema, root)
        if not isinstance(schema, Mapping) or not allowed or ("string" in allowed and "enum" not in schema):
            return grammar.until(end)
        if allowed == {"string"}:
            return f"({' | '.join(map(grammar.text, schema['enum']))}) {grammar.text(end)}"
        return f"{grammar.json({**_definitions(root), **schema})} {grammar.text(end)}"


def _definitions(root: Mapping[str, Any]) -> dict[str, Any]:
    return {word: root[word] for word in ("$defs", "definitions") if word in root}


class _Values:
    """Says the values of one call: as members of an object, or for a custom tool as the one text there is."""

    def __init__(self, reader: TapeReader, frame: TaggedFrame, offer: Offered) -> None:
        self._reader, self._frame, self._offer = reader, frame, offer
        self._root: Mapping[str, Any] = offer.parameters or {}
        properties = self._root.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._said: set[str] = set()
        spell = reader.tape.alphabet.spell
        self._tags = [spell(tag) for tag in (frame.value_end, frame.key, frame.foot)]
        self._open, self._close, self._head = spell(frame.open), spell(frame.close), spell(frame.head)
        self._stops = Stops([self._tags[0], *("\n" + tag for tag in self._tags)], controls=True)

    def read(self, name: str) -> Wait[None]:
        """Read a value, from behind its opening tag to behind its closing one."""
        tape, custom = self._reader.tape, self._offer.kind == "custom"
        yield from tape.literal("\n")
        yield from tape.more()
        if name in self._said or (custom and self._said):
            yield from self._each(tape.skip)
        elif custom:
            yield from self._each(self._reader.arguments)
        else:
            yield from self._member(name)
        self._said.add(name)

    def end(self) -> None:
        """Close the object. One without members is left to the machine."""
        if self._said and self._offer.kind == "function":
            self._reader.make("}")

    def _member(self, name: str) -> Wait[None]:
        reader = self._reader
        reader.make(("{" if not self._said else ", ") + cast.quote(name) + ": ")
        allowed = cast.types(self._properties.get(name), self._root)
        if cast.streams(allowed, reader.tape.peek()):
            reader.make('"')
            yield from self._each(lambda count: reader.make(cast.quote(self._ahead(count))[1:-1], count))
            reader.make('"')
        else:
            held: list[str] = []
            try:
                yield from self._each(lambda count: held.append(self._held(count)))
            except Malformed:
                reader.make("".join(held))
                raise
            reader.make(cast.cast("".join(held), allowed))

    def _ahead(self, count: int) -> str:
        return self._reader.tape.alphabet.written(self._reader.tape.peek(count))

    def _held(self, count: int) -> str:
        text = self._ahead(count)
        self._reader.tape.skip(count)
        return text

    def _each(self, take: Callable[[int], None]) -> Wait[None]:
        """Give `take` the lengths of the value's pieces, up to its end. Raises `Malformed` where there is none."""
        tape = self._reader.tape
        while (yield from tape.more()):
            if count := tape.clear(self._stops):
                take(count)
            elif tag := (yield from tape.at(self._stops)):
                bare = tag.removeprefix("\n")
                if bare not in self._tags:
                    break
                if (yield from self._ends(bare, len(tag))):
                    return
                take(len(tag))
        raise Malformed("no end")

    def _ends(self, tag: str, count: int) -> Wait[bool]:
        """Whether this tag ends the value; then skip it, or only the newline before it if it says more than that."""
        tape = self._reader.tape
        mark = tape.mark()
        tape.skip(count)
        try:
            ends = yield from self._goes_on(tag)
        except Malformed:
            ends = False
        if not ends or tag != self._tags[0]:
            tape.rewind(mark)
            tape.skip(count - len(tag) if ends else 0)
        tape.release()
        return ends

    def _goes_on(self, tag: str) -> Wait[bool]:
        """Whether what follows the tag is what follows the end of a value. Raises `Malformed`."""
        tape, (value_end, key, foot) = self._reader.tape, self._tags
        if tag == key:
            return (yield from tape.word(self._frame.end)) in self._properties.keys() - self._said
        yield from tape.blanks()
        if not (yield from tape.more()):
            return tag == value_end or tape.natural
        follow = (key, foot, self._close) if tag == value_end else (self._close, self._open, self._head)
        for literal in follow:
            if (yield from tape.sees(literal, cut=tag == value_end)):
                return True
        return tape.controlled()
