"""Frames whose calls look like calls of a programming language: `add(a=1)`, or `call:add{a:1}`."""

import json
from collections.abc import Mapping, Sequence

from antiphon.harmony.calls.base import INPUT, Between, ListFrame, parameters
from antiphon.harmony.grammar import Grammar
from antiphon.harmony.parsing import schema_values
from antiphon.harmony.parsing.lenient_json import KEY, Loose, name
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Malformed, Wait
from antiphon.harmony.tools import Offered

PYTHON = Loose()
_WORDS = {"boolean": ("True", "False"), "null": ("None",)}


class PythonFrame(ListFrame, frozen=True, kw_only=True):
    """`open [add(a=1), sub(b="x")] close`, as Python would write it; calls may also stand without brackets."""

    brackets: bool = True

    @property
    def loose(self) -> bool:
        """Whether several calls may stand there without brackets."""
        return True

    def call(self, reader: TapeReader) -> Wait[None]:
        """Read `NAME(key=value, …)`."""
        tape = reader.tape
        offer = reader.offered((yield from name(reader)))
        yield from tape.expect("(")
        reader.begin(offer)
        yield from tape.blanks()
        said = 0
        while not (yield from tape.literal(")")):
            key = yield from name(reader)
            yield from tape.blanks()
            yield from tape.expect("=")
            yield from tape.blanks()
            if offer.kind == "custom":
                yield from _raw(reader, key)
            else:
                reader.make(f"{'{' if not said else ', '}{schema_values.quote(key)}: ")
                yield from PYTHON.value(reader)
            said += 1
            yield from PYTHON.comma(reader, ")")
        if said and offer.kind == "function":
            reader.make("}")
        reader.close()

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener: one call. What its values hold inside is JSON, which reads the same."""
        if not _readable(offer):
            return None
        sides = _values(offer, grammar, "=", ", ")
        bracket = self.brackets and not self.bare
        parts = [grammar.text("["), "BLANKS"] if bracket else ["BLANKS"]
        parts += [grammar.text(f"{offer.flat}("), sides, grammar.text(")" + ("]" if self.brackets else ""))]
        return " ".join(filter(None, [*parts, f"BLANKS {grammar.marker(self.close)}" if self.close else ""]))

    @property
    def around(self) -> tuple[str, str]:
        """What stands around the calls within the markers."""
        return super().around if self.brackets else ("\n", "\n")

    def one(self, offer: Offered, arguments: str) -> str | None:
        """A call as Python would write it."""
        if offer.kind == "custom":
            return None
        members = json.loads(arguments or "{}").items()
        return f"{offer.flat}({', '.join(f'{key}={_literal(value)}' for key, value in members)})"


class LaxFrame(Between, frozen=True, kw_only=True):
    """`open call:NAME{key:value, …} close`, with strings in marks of their own and keys without any."""

    head: str = "call:"
    quote: str = '<|"|>'

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return self.open, self.close, self.quote

    @property
    def _syntax(self) -> Loose:
        return Loose(quotes=(self.quote, '"'), escaping=('"',))

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.spell
        yield from tape.expect(spell(self.open))
        yield from tape.blanks()
        yield from tape.expect(self.head)
        offer = reader.offered((yield from name(reader)))
        if not (yield from tape.sees("{")):
            raise Malformed("no arguments")
        reader.begin(offer)
        if offer.kind == "custom":
            yield from self._custom(reader)
        else:
            yield from self._syntax.members(reader, kinds=_kinds(offer))
        reader.close()
        yield from self.finish(reader)

    def _custom(self, reader: TapeReader) -> Wait[None]:
        tape = reader.tape
        yield from tape.expect("{")
        yield from tape.blanks()
        key = yield from self._syntax.key(reader)
        yield from _raw(reader, key, self._syntax)
        yield from tape.blanks()
        yield from tape.expect("}")

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:
        """What may follow the opener."""
        if not _readable(offer):
            return None
        head, foot = grammar.text(f"{self.head}{offer.flat}{{"), grammar.text("}")
        return (
            f"BLANKS {head} {_values(offer, grammar, ':', ',', self.quote)} {foot} BLANKS {grammar.marker(self.close)}"
        )

    def one(self, offer: Offered, arguments: str) -> str | None:
        """A call as a model would write it."""
        if offer.kind == "custom":
            return None
        inside = ",".join(f"{key}:{self._written(value)}" for key, value in json.loads(arguments or "{}").items())
        return f"{self.open}{self.head}{offer.flat}{{{inside}}}{self.close}"

    def _written(self, value: object) -> str:
        return f"{self.quote}{value}{self.quote}" if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kinds(offer: Offered) -> dict[str, frozenset[str]]:
    """The types of the parameters that cannot be strings."""
    schema = offer.parameters or {}
    known = {key: schema_values.types(part, schema) for key, part, _ in parameters(offer)}
    return {key: allowed for key, allowed in known.items() if allowed and "string" not in allowed}


def _readable(offer: Offered) -> bool:
    """Whether a call of this tool can be told in such a syntax: its parameters stand without quotation marks."""
    return offer.kind == "function" and all(KEY.fullmatch(key) for key, _, _ in parameters(offer))


def _raw(reader: TapeReader, key: str, syntax: Loose = PYTHON) -> Wait[None]:
    """Say a custom tool's text: the one string in `input`. Raises `Malformed` for anything else."""
    tape = reader.tape
    for quote in syntax.quotes if key == INPUT else ():
        if (yield from tape.sees(tape.alphabet.spell(quote))):
            yield from syntax.text(reader, quote)
            return
    raise Malformed(INPUT)


def _values(offer: Offered, grammar: Grammar, sign: str, between: str, quote: str | None = None) -> str:
    """The parameters in the schema's order, the required ones always, with commas between those that are there."""
    schema = offer.parameters or {}
    known = parameters(offer)
    needed, optional = ([key for key, _, there in known if there is way] for way in (True, False))
    values = {key: f"{grammar.text(f'{key}{sign}')} {_value(part, schema, grammar, quote)}" for key, part, _ in known}
    comma = grammar.text(between)
    head = f" {comma} ".join(values[key] for key in needed)
    if needed:
        return " ".join([head, *(f"({comma} {values[key]})?" for key in optional)])
    # Without one that is always there, whichever comes first has no comma before it.
    sides = [
        " ".join([values[key], *(f"({comma} {values[later]})?" for later in optional[at + 1 :])])
        for at, key in enumerate(optional)
    ]
    return f"({' | '.join(sides)})?" if sides else ""


def _value(part: object, schema: Mapping[str, object], grammar: Grammar, quote: str | None) -> str:
    own = schema_values.resolved(part, schema)
    words = _WORDS.get(str(own.get("type")), ())
    if quote is None and words and "enum" not in own:
        return f"({' | '.join(map(grammar.text, words))})"
    if quote is not None and schema_values.types(part, schema) == {"string"}:
        if isinstance(choices := own.get("enum"), list) and choices:
            said = " | ".join(grammar.text(str(choice)) for choice in choices)
            return f"{grammar.marker(quote)} ({said}) {grammar.marker(quote)}"
        return f"{grammar.marker(quote)} {grammar.held(own, quote)}"
    return grammar.json(schema_values.standing(part, schema))


def _literal(value: object) -> str:
    """A value as Python writes it, with the quotation marks of JSON."""
    match value:
        case None | bool():
            return str(value)
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case dict():
            return f"{{{', '.join(f'{schema_values.quote(key)}: {_literal(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
