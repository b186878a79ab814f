"""Frames whose arguments are key and value in tags, put into JSON as they come.

What was said of the arguments is never revised: strings are said as they are read, everything else once its end is
seen. A value may hold any of the tags: one counts only where what follows it goes on as a call does.
"""

import json
from collections.abc import Sequence

from antiphon.harmony.calls.base import INPUT, CountedFrame, parameters
from antiphon.harmony.calls.xml_tag_values import Values, named
from antiphon.harmony.grammar import Grammar, one_then
from antiphon.harmony.parsing import schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Tape, Wait, stops_at
from antiphon.harmony.tools import Offered

_LINE = "\n"
_MARKS = """[ \\t]*["']?"""


class TaggedFrame(CountedFrame, frozen=True, kw_only=True):
    """`open head NAME end (key NAME key_end value VALUE value_end)* foot close`; open, close, value_end may be missing.

    Names may stand in quotation marks; `quote` is the one they are written with. `typed` names an attribute that says
    whether a value is a string (`true`) or JSON (`false`); `type` says which type of JSON. `counted` names an attribute
    of the call that counts from 1. `gap` belongs to the tags at either end of a value. Without
    `end`, the tool's name goes to the end of its line or to the first tag; without `value_end`'s tag, a new line ends a
    value.
    """

    head: str
    foot: str
    key: str
    value_end: str
    end: str = ">"
    key_end: str = ">"
    value: str = ""
    quote: str = ""
    typed: str = ""
    counted: str = ""
    gap: str = "\n"
    outer: tuple[str, ...] = ()
    """What closes the section around it: a call whose own end is missing ends there."""

    @property
    def openers(self) -> Sequence[str]:
        """The markers with which it can begin."""
        return tuple(filter(None, (self.open, self.head)))

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        tags = (self.open, self.close, self.head, self.foot, self.key, self.value_end, self.value)
        return tuple(tag for tag in (*tags, self.end, self.key_end) if len(tag) > 1)

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.spell
        yield from tape.literal(spell(self.open))
        yield from tape.blanks()
        yield from tape.expect(spell(self.head))
        offer = reader.offered(self.parse((yield from self._name(tape)))[0])
        reader.begin(offer)
        values = Values(reader, self, offer)
        while not (yield from self._over(tape)):
            yield from tape.expect(spell(self.key))
            yield from values.read(*self.parse((yield from tape.word(spell(self.key_end)))))
        values.end()
        reader.close()
        if self.close:
            yield from tape.blanks()
            yield from tape.literal(spell(self.close), cut=True)

    def _name(self, tape: Tape) -> Wait[str]:
        """Skip the tool's name, and what ends it unless that is a tag that follows."""
        spell = tape.alphabet.spell
        if self.end:
            return (yield from tape.word(spell(self.end)))
        yield from tape.blanks()
        name = yield from tape.until(stops_at("\n", spell(self.key), spell(self.foot), controls=True))
        return name.strip()

    def _over(self, tape: Tape) -> Wait[bool]:
        """Skip the foot, or see what may stand in its place: a closer, the next call, the natural end of the answer."""
        yield from tape.blanks()
        spell = tape.alphabet.spell
        if not (yield from tape.more()):
            return tape.natural
        if (yield from tape.literal(spell(self.foot))):
            return True
        for text in filter(None, (self.close, self.open, self.head, *self.outer)):
            if (yield from tape.sees(spell(text))):
                return True
        return False

    @property
    def trims(self) -> bool:
        """Whether a newline at either end of a value belongs to its tags."""
        return self.gap != "" and not self.value

    def parse(self, text: str) -> tuple[str, dict[str, str]]:
        """The name in a tag, and the attributes behind it where such tags have any."""
        return named(text) if self.quote or self.typed else (text.strip().strip("\"'"), {})

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener: the parameters in the schema's order, the required ones always."""
        sides = []
        for name, part, needed in parameters(offer):
            side = self._side(name, part, offer, grammar)
            sides.append(side if needed else f"({side})?")
        head = [grammar.marker(self.head)] if self.open else []
        head += [grammar.text(self._quoted(offer.flat)), *self._numbered(grammar), grammar.marker(self.end)]
        head += [grammar.text(self.gap if self.end else _LINE)] if self.gap or not self.end else []
        parts = [*(["BLANKS"] if self.open else []), *filter(None, head), *sides, grammar.marker(self.foot)]
        return " ".join([*parts, *(["BLANKS", grammar.marker(self.close)] if self.close else [])])

    def _numbered(self, grammar: Grammar) -> list[str]:
        return [grammar.text(f' {self.counted}="'), "/[0-9]{1,3}/", grammar.text('"')] if self.counted else []

    def _quoted(self, name: str) -> str:
        return f"{self.quote}{name}{self.quote}"

    def _side(self, name: str, part: object, offer: Offered, grammar: Grammar) -> str:
        """A parameter: its tags, and what may stand between them."""
        root = offer.parameters or {}
        allowed = schema_values.types(part, root)
        if not self.typed or offer.kind == "custom" or allowed == schema_values.TEXT:
            return f"{self._tags(name, schema_values.TEXT, grammar)} {self._value(part, offer, grammar)}"
        value = grammar.json(schema_values.standing(schema_values.resolved(part, root), root))
        return f"{self._tags(name, allowed - schema_values.TEXT, grammar)} {value} {self._closed(grammar)}"

    def _attribute(self, kinds: frozenset[str]) -> str:
        """What is said of a value's type."""
        if self.typed != "type":
            return f' {self.typed}="{str(kinds == schema_values.TEXT).lower()}"' if self.typed else ""
        named = next(iter(sorted(kinds)), "object")
        return f' type="{"number" if named == "integer" else named}"'

    def _tags(self, name: str, kinds: frozenset[str], grammar: Grammar) -> str:
        """What opens a parameter."""
        key = f"{self._quoted(name)}{self._attribute(kinds)}"
        if self.value:
            parts = [
                grammar.marker(self.key),
                grammar.text(key),
                grammar.marker(self.key_end),
                grammar.text(self.gap) if self.gap else "",
                grammar.marker(self.value),
            ]
            return " ".join(filter(None, parts)) + " "
        gap = grammar.text(self.gap) if self.gap else ""
        return f"{grammar.marker(self.key)} {grammar.text(key)} {grammar.marker(self.key_end)} {gap} "

    @property
    def _end(self) -> str:
        gap = "" if self.value else self.gap
        return f"{gap}{self.value_end}{self.gap}"

    def _closed(self, grammar: Grammar) -> str:
        """What closes a parameter."""
        before = "" if self.value else self.gap
        parts = [
            grammar.text(before) if before else "",
            grammar.marker(self.value_end),
            grammar.text(self.gap) if self.gap else "",
        ]
        return " ".join(filter(None, parts))

    def _value(self, schema: object, offer: Offered, grammar: Grammar) -> str:
        """A value of this schema, and its closing tag."""
        if offer.kind == "custom":
            return f"{grammar.raw(offer, self._stop, self._ruin(offer))} {self._after(grammar)}"
        root = offer.parameters or {}
        own, allowed = schema_values.resolved(schema, root), schema_values.types(schema, root)
        if isinstance(values := own.get("enum"), list) and values:
            said = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
            return f"({' | '.join(map(grammar.text, said))}) {self._closed(grammar)}"
        if not allowed or "string" in allowed:
            text = grammar.held(own if allowed == schema_values.TEXT else {}, self._stop, self._ruin(offer))
            return f"{text} {self._after(grammar)}"
        return f"{grammar.json(schema_values.standing(own, root))} {self._closed(grammar)}"

    def _ruin(self, offer: Offered) -> str:
        """What would be read as the end of a value whose closing tag is missing."""
        ends = one_then(self.foot, filter(None, (self.close, self.open, self.head, *self.outer)))
        names = [name for name, _, _ in parameters(offer)] if offer.kind == "function" else []
        return f"{ends}|{one_then(self.key, names, _MARKS)}" if names else ends

    @property
    def _stop(self) -> str:
        """Where free text ends: at its tag, which one token may be, or at the newline before it."""
        return self.value_end if self.value or not self.gap else f"{self.gap}{self.value_end}"

    def _after(self, grammar: Grammar) -> str:
        return grammar.text(self.gap) if self.gap else ""

    def one(self, offer: Offered, arguments: str, place: int = 0) -> str | None:
        """A call as a model would write it; `place`: how many were written before it."""
        members = {INPUT: arguments} if offer.kind == "custom" else json.loads(arguments or "{}")
        said = [self._written(name, value) for name, value in members.items()]
        number = f' {self.counted}="{place + 1}"' if self.counted else ""
        end = f"{self.end}{self.gap}" if self.end else _LINE
        head = f"{self.head}{self._quoted(offer.flat)}{number}{end}"
        around = ("\n", "\n") if self.open and self.gap else ("", "")
        return f"{self.open}{around[0]}{head}{''.join(said)}{self.foot}{around[1] if self.close else ''}{self.close}"

    def _written(self, name: str, value: object) -> str:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        attribute = self._attribute(frozenset({schema_values.type_of(value)}))
        before = f"{self.gap}{self.value}" if self.value else self.gap
        return f"{self.key}{self._quoted(name)}{attribute}{self.key_end}{before}{text}{self._end}"
