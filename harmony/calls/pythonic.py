"""Call formats that look like calls of a programming language: `add(a=1)`, or `call:add{a:1}`."""

import json
from collections.abc import Mapping, Sequence

from antiphon.harmony.calls.base import CallFormat, ListCall, list_parameters
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing import json_stream, schema_values
from antiphon.harmony.parsing.lenient_json import KEY_PATTERN, LenientJson, read_name
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser
from antiphon.harmony.tools import INPUT, ToolSpec

PYTHON_SYNTAX = LenientJson()
_LITERALS = {"boolean": ("True", "False"), "null": ("None",)}


class PythonicCall(ListCall, frozen=True, kw_only=True):
    """`open [add(a=1), sub(b="x")] close`, in Python syntax. The brackets may be missing."""

    @property
    def allows_bare_calls(self) -> bool:
        """True: several calls may follow each other without brackets."""
        return True

    def read_one_call(self, reader: TapeReader) -> Parser[None]:
        """Parses `NAME(key=value, …)`."""
        tape = reader.tape
        name = yield from read_name(reader)
        yield from tape.expect("(")
        tool = reader.require_tool(name)
        reader.begin_call(tool)
        yield from tape.skip_whitespace()
        keys: set[str] = set()
        while not (yield from tape.skip_literal(")")):
            key = yield from read_name(reader)
            yield from tape.skip_whitespace()
            yield from tape.expect("=")
            yield from tape.skip_whitespace()
            if key in keys:
                yield from reader.discard_arguments(PYTHON_SYNTAX.read_value(reader))
            elif tool.kind == "custom":
                yield from _read_raw_input(reader, key)
            else:
                reader.emit_arguments(f"{'{' if not keys else ', '}{schema_values.encode_string(key)}: ")
                yield from PYTHON_SYNTAX.read_value(reader)
            keys.add(key)
            yield from json_stream.skip_comma(tape, ")")
        if keys and tool.kind == "function":
            reader.emit_arguments("}")
        reader.close_item()

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the opener: one call. Nested values are JSON, which parses the same."""
        if not _is_expressible(tool):
            return None
        parameters = _parameters_rule(tool, grammar, "=", ", ")
        bracket = self.brackets and not self.head_only
        parts = [grammar.literal_text("["), "BLANKS"] if bracket else ["BLANKS"]
        end = grammar.literal_text(")" + ("]" if self.brackets else ""))
        parts += [grammar.literal_text(f"{tool.model_name}("), parameters, end]
        return " ".join(filter(None, [*parts, grammar.after_blanks(self.close)]))

    def write_call(self, tool: ToolSpec, arguments: str) -> str | None:
        """Writes a call in Python syntax."""
        if tool.kind == "custom":
            return None
        members = json.loads(arguments or "{}").items()
        return f"{tool.model_name}({', '.join(f'{key}={_write_literal(value)}' for key, value in members)})"


class BraceCall(CallFormat, frozen=True, kw_only=True):
    """`open call:NAME{key:value, …} close`, with strings between markers (`quote`) and keys without quotes."""

    head: str = "call:"
    quote: str = '<|"|>'

    @property
    def markers(self) -> Sequence[str]:
        """Markers of the format, openers included."""
        return self.open, self.close, self.quote

    @property
    def _syntax(self) -> LenientJson:
        return LenientJson(quotes=(self.quote, '"'), escaping=('"',))

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses a call, beginning at its opener."""
        tape, tape_text = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.expect(tape_text(self.open))
        yield from tape.skip_whitespace()
        yield from tape.expect(self.head)
        tool = reader.require_tool((yield from read_name(reader)))
        if not (yield from tape.matches_here("{")):
            raise MalformedText("no arguments")
        reader.begin_call(tool)
        if tool.kind == "custom":
            yield from self._read_custom(reader)
        else:
            yield from self._syntax.read_members(reader, kinds=_non_string_types(tool))
        reader.close_item()
        yield from self.skip_closer(reader)

    def _read_custom(self, reader: TapeReader) -> Parser[None]:
        tape, is_read = reader.tape, False
        yield from tape.expect("{")
        yield from tape.skip_whitespace()
        while not (yield from tape.skip_literal("}")):
            key = yield from self._syntax.read_key(reader)
            if is_read:
                yield from reader.discard_arguments(self._syntax.read_value(reader))
            else:
                yield from _read_raw_input(reader, key, self._syntax)
            is_read = True
            yield from json_stream.skip_comma(tape)
        if not is_read:
            raise MalformedText(INPUT)

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:
        """Returns the rule of what may follow the opener."""
        if not _is_expressible(tool):
            return None
        prefix, suffix = grammar.literal_text(f"{self.head}{tool.model_name}{{"), grammar.literal_text("}")
        parameters = _parameters_rule(tool, grammar, ":", ",", self.quote)
        return f"BLANKS {prefix} {parameters} {suffix} BLANKS {grammar.marker_symbol(self.close)}"

    def write_call(self, tool: ToolSpec, arguments: str) -> str | None:
        """Writes a call as a model would."""
        if tool.kind == "custom":
            return None
        inside = ",".join(f"{key}:{self._write_value(value)}" for key, value in json.loads(arguments or "{}").items())
        return f"{self.open}{self.head}{tool.model_name}{{{inside}}}{self.close}"

    def _write_value(self, value: object) -> str:
        return f"{self.quote}{value}{self.quote}" if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _non_string_types(tool: ToolSpec) -> dict[str, frozenset[str]]:
    """Returns the types of the parameters that cannot be strings."""
    schema = tool.parameters or {}
    types = {key: schema_values.allowed_types(part, schema) for key, part, _ in list_parameters(tool)}
    return {key: allowed for key, allowed in types.items() if allowed and "string" not in allowed}


def _is_expressible(tool: ToolSpec) -> bool:
    """Tells whether this syntax can express calls of the tool: names of parameters are not quoted in it."""
    return tool.kind == "function" and all(KEY_PATTERN.fullmatch(key) for key, _, _ in list_parameters(tool))


def _read_raw_input(reader: TapeReader, key: str, syntax: LenientJson = PYTHON_SYNTAX) -> Parser[None]:
    """Emits a custom tool's text, the only string in `input`. Raises `MalformedText` for anything else."""
    tape = reader.tape
    for quote in syntax.quotes if key == INPUT else ():
        if (yield from tape.matches_here(tape.alphabet.tape_text(quote))):
            yield from syntax.read_text(reader, quote)
            return
    raise MalformedText(INPUT)


def _parameters_rule(tool: ToolSpec, grammar: GrammarBuilder, sign: str, between: str, quote: str | None = None) -> str:
    """Returns the rule of the parameters: required ones first, then any optional ones, with commas between them."""
    schema = tool.parameters or {}
    parameters = list_parameters(tool)
    required, optional = (
        [key for key, _, is_required in parameters if is_required is state] for state in (True, False)
    )
    values = {
        key: f"{grammar.literal_text(f'{key}{sign}')} {_value_rule(part, schema, grammar, quote)}"
        for key, part, _ in parameters
    }
    comma = grammar.literal_text(between)
    required_rule = f" {comma} ".join(values[key] for key in required)
    if required:
        return " ".join([required_rule, *(f"({comma} {values[key]})?" for key in optional)])
    # Without required parameters, any optional one can be the first, which has no comma before it.
    alternatives = [
        " ".join([values[key], *(f"({comma} {values[later]})?" for later in optional[index + 1 :])])
        for index, key in enumerate(optional)
    ]
    return f"({' | '.join(alternatives)})?" if alternatives else ""


def _value_rule(part: object, schema: Mapping[str, object], grammar: GrammarBuilder, quote: str | None) -> str:
    resolved = schema_values.resolve_schema(part, schema)
    constants = _LITERALS.get(str(resolved.get("type")), ())
    if quote is None and constants and "enum" not in resolved:
        return f"({' | '.join(map(grammar.literal_text, constants))})"
    if quote is not None and schema_values.allowed_types(part, schema) == {"string"}:
        if isinstance(choices := resolved.get("enum"), list) and choices:
            alternatives = " | ".join(grammar.literal_text(str(choice)) for choice in choices)
            return f"{grammar.marker_symbol(quote)} ({alternatives}) {grammar.marker_symbol(quote)}"
        return f"{grammar.marker_symbol(quote)} {grammar.constrained_text(resolved, quote)}"
    return grammar.json_value(schema_values.self_contained(part, schema))


def _write_literal(value: object) -> str:
    """Writes a value as a Python literal, with strings in JSON's double quotes."""
    match value:
        case None | bool():
            return str(value)
        case list():
            return f"[{', '.join(map(_write_literal, value))}]"
        case dict():
            pairs = (f"{schema_values.encode_string(key)}: {_write_literal(inner)}" for key, inner in value.items())
            return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False)
