"""Frames whose calls look like calls of a programming language: `add(a=1)`, or `call:add{a:1}`."""

import json
from collections.abc import Mapping, Sequence

from antiphon.harmony.calls.base import DelimitedCall, ListCall, list_parameters
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing import schema_values
from antiphon.harmony.parsing.lenient_json import KEY, LenientJson, read_name
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser
from antiphon.harmony.tools import INPUT, ToolSpec

PYTHON_SYNTAX = LenientJson()
_WORDS = {"boolean": ("True", "False"), "null": ("None",)}


class PythonicCall(ListCall, frozen=True, kw_only=True):
    """`open [add(a=1), sub(b="x")] close`, as Python would write it; calls may also stand without brackets."""

    brackets: bool = True

    @property
    def allows_bare_calls(self) -> bool:
        """Whether several calls may stand there without brackets."""
        return True

    def read_one_call(self, reader: TapeReader) -> Parser[None]:
        """Read `NAME(key=value, …)`."""
        tape = reader.tape
        offer = reader.require_tool((yield from read_name(reader)))
        yield from tape.expect("(")
        reader.begin_call(offer)
        yield from tape.skip_whitespace()
        said = 0
        while not (yield from tape.skip_literal(")")):
            key = yield from read_name(reader)
            yield from tape.skip_whitespace()
            yield from tape.expect("=")
            yield from tape.skip_whitespace()
            if offer.kind == "custom":
                yield from _read_raw_input(reader, key)
            else:
                reader.emit_arguments(f"{'{' if not said else ', '}{schema_values.encode_string(key)}: ")
                yield from PYTHON_SYNTAX.read_value(reader)
            said += 1
            yield from PYTHON_SYNTAX.skip_comma(reader, ")")
        if said and offer.kind == "function":
            reader.emit_arguments("}")
        reader.close_item()

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the opener: one call. What its values hold inside is JSON, which reads the same."""
        if not _is_expressible(offer):
            return None
        sides = _parameters_rule(offer, grammar, "=", ", ")
        bracket = self.brackets and not self.head_only
        parts = [grammar.literal_text("["), "BLANKS"] if bracket else ["BLANKS"]
        parts += [
            grammar.literal_text(f"{offer.model_name}("),
            sides,
            grammar.literal_text(")" + ("]" if self.brackets else "")),
        ]
        return " ".join(filter(None, [*parts, f"BLANKS {grammar.marker_symbol(self.close)}" if self.close else ""]))

    @property
    def brackets_around(self) -> tuple[str, str]:
        """What stands around the calls within the markers."""
        return super().brackets_around if self.brackets else ("\n", "\n")

    def write_call(self, offer: ToolSpec, arguments: str) -> str | None:
        """A call as Python would write it."""
        if offer.kind == "custom":
            return None
        members = json.loads(arguments or "{}").items()
        return f"{offer.model_name}({', '.join(f'{key}={_write_literal(value)}' for key, value in members)})"


class BraceCall(DelimitedCall, frozen=True, kw_only=True):
    """`open call:NAME{key:value, …} close`, with strings in marks of their own and keys without any."""

    head: str = "call:"
    quote: str = '<|"|>'

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return self.open, self.close, self.quote

    @property
    def _syntax(self) -> LenientJson:
        return LenientJson(quotes=(self.quote, '"'), escaping=('"',))

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read a call from its opener on."""
        tape, spell = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.expect(spell(self.open))
        yield from tape.skip_whitespace()
        yield from tape.expect(self.head)
        offer = reader.require_tool((yield from read_name(reader)))
        if not (yield from tape.stands_here("{")):
            raise MalformedText("no arguments")
        reader.begin_call(offer)
        if offer.kind == "custom":
            yield from self._read_custom(reader)
        else:
            yield from self._syntax.read_members(reader, kinds=_non_string_types(offer))
        reader.close_item()
        yield from self.skip_closer(reader)

    def _read_custom(self, reader: TapeReader) -> Parser[None]:
        tape = reader.tape
        yield from tape.expect("{")
        yield from tape.skip_whitespace()
        key = yield from self._syntax.read_key(reader)
        yield from _read_raw_input(reader, key, self._syntax)
        yield from tape.skip_whitespace()
        yield from tape.expect("}")

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """What may follow the opener."""
        if not _is_expressible(offer):
            return None
        head, foot = grammar.literal_text(f"{self.head}{offer.model_name}{{"), grammar.literal_text("}")
        return f"BLANKS {head} {_parameters_rule(offer, grammar, ':', ',', self.quote)} {foot} BLANKS {grammar.marker_symbol(self.close)}"

    def write_call(self, offer: ToolSpec, arguments: str) -> str | None:
        """A call as a model would write it."""
        if offer.kind == "custom":
            return None
        inside = ",".join(f"{key}:{self._write_value(value)}" for key, value in json.loads(arguments or "{}").items())
        return f"{self.open}{self.head}{offer.model_name}{{{inside}}}{self.close}"

    def _write_value(self, value: object) -> str:
        return f"{self.quote}{value}{self.quote}" if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _non_string_types(offer: ToolSpec) -> dict[str, frozenset[str]]:
    """The types of the parameters that cannot be strings."""
    schema = offer.parameters or {}
    known = {key: schema_values.allowed_types(part, schema) for key, part, _ in list_parameters(offer)}
    return {key: allowed for key, allowed in known.items() if allowed and "string" not in allowed}


def _is_expressible(offer: ToolSpec) -> bool:
    """Whether a call of this tool can be told in such a syntax: its parameters stand without quotation marks."""
    return offer.kind == "function" and all(KEY.fullmatch(key) for key, _, _ in list_parameters(offer))


def _read_raw_input(reader: TapeReader, key: str, syntax: LenientJson = PYTHON_SYNTAX) -> Parser[None]:
    """Say a custom tool's text: the one string in `input`. Raises `Malformed` for anything else."""
    tape = reader.tape
    for quote in syntax.quotes if key == INPUT else ():
        if (yield from tape.stands_here(tape.alphabet.tape_text(quote))):
            yield from syntax.read_text(reader, quote)
            return
    raise MalformedText(INPUT)


def _parameters_rule(
    offer: ToolSpec, grammar: GrammarBuilder, sign: str, between: str, quote: str | None = None
) -> str:
    """The parameters in the schema's order, the required ones always, with commas between those that are there."""
    schema = offer.parameters or {}
    known = list_parameters(offer)
    needed, optional = ([key for key, _, there in known if there is way] for way in (True, False))
    values = {
        key: f"{grammar.literal_text(f'{key}{sign}')} {_value_rule(part, schema, grammar, quote)}"
        for key, part, _ in known
    }
    comma = grammar.literal_text(between)
    head = f" {comma} ".join(values[key] for key in needed)
    if needed:
        return " ".join([head, *(f"({comma} {values[key]})?" for key in optional)])
    # Without one that is always there, whichever comes first has no comma before it.
    sides = [
        " ".join([values[key], *(f"({comma} {values[later]})?" for later in optional[at + 1 :])])
        for at, key in enumerate(optional)
    ]
    return f"({' | '.join(sides)})?" if sides else ""


def _value_rule(part: object, schema: Mapping[str, object], grammar: GrammarBuilder, quote: str | None) -> str:
    own = schema_values.resolve_schema(part, schema)
    words = _WORDS.get(str(own.get("type")), ())
    if quote is None and words and "enum" not in own:
        return f"({' | '.join(map(grammar.literal_text, words))})"
    if quote is not None and schema_values.allowed_types(part, schema) == {"string"}:
        if isinstance(choices := own.get("enum"), list) and choices:
            said = " | ".join(grammar.literal_text(str(choice)) for choice in choices)
            return f"{grammar.marker_symbol(quote)} ({said}) {grammar.marker_symbol(quote)}"
        return f"{grammar.marker_symbol(quote)} {grammar.constrained_text(own, quote)}"
    return grammar.json_value(schema_values.self_contained(part, schema))


def _write_literal(value: object) -> str:
    """A value as Python writes it, with the quotation marks of JSON."""
    match value:
        case None | bool():
            return str(value)
        case list():
            return f"[{', '.join(map(_write_literal, value))}]"
        case dict():
            return f"{{{', '.join(f'{schema_values.encode_string(key)}: {_write_literal(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
