"""Writes JSON Schemas as rules that generate what llguidance accepts for the same schema.

Properties come in the schema's order. Keywords that GBNF cannot say, or that are not implemented here, are refused.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.engine.remote.grammars.gbnf.automaton import RegularWriter
from antiphon.engine.remote.grammars.gbnf.errors import UntranslatableError
from antiphon.engine.remote.grammars.gbnf.number_ranges import integer_between, number_between
from antiphon.engine.remote.grammars.gbnf.regex_reader import RegexReader
from antiphon.engine.remote.grammars.gbnf.regular import (
    ANYTHING,
    UNBOUNDED,
    Charset,
    ExpressionTable,
    intersect,
    invert,
)
from antiphon.engine.remote.grammars.gbnf.rules import EMPTY_LITERAL, RuleWriter, Symbol

ANNOTATIONS = frozenset(
    "title description default examples $schema $id $comment deprecated readOnly writeOnly $defs definitions "
    "x-guidance".split()
)
BOUNDS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum".split())
KEYWORDS = {
    "object": frozenset("properties required additionalProperties".split()),
    "array": frozenset("items prefixItems minItems maxItems".split()),
    "string": frozenset("minLength maxLength pattern format".split()),
    "integer": BOUNDS,
    "number": BOUNDS,
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
"""Keywords of each type that are implemented."""
UNESCAPED_CHARS: Charset = invert(((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F)))
"""Characters that stand for themselves in a JSON string."""
ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
STRING_FORMATS = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
}
STRING_FORMATS["email"] = r"[A-Za-z0-9]+([._-][A-Za-z0-9]+){0,8}@[A-Za-z0-9]+([.-][A-Za-z0-9]+){0,4}\.[A-Za-z]{2,10}"
STRING_FORMATS["date-time"] = f"{STRING_FORMATS['date']}T{STRING_FORMATS['time']}"
INTEGER = "-?(0|[1-9][0-9]*)"
NUMBER = rf"{INTEGER}(\.[0-9]+)?([eE][+-]?[0-9]+)?"
MAX_SCHEMA_DEPTH = 60


class JsonSchemaWriter:
    """Writes values of schemas. `without`: expression of texts that no string may contain."""

    def __init__(self, table: ExpressionTable, rules: RuleWriter, regular: RegularWriter, without: int) -> None:
        self._table, self._rules, self._regular = table, rules, regular
        self._string_body = table.both(table.repeat(self._encode_charset(invert(())), 0, UNBOUNDED), without)
        self._blanks = regular.write(RegexReader(table, r"( |\n[ \t]{0,20})?").read())
        self._root: Any = None
        self._references: dict[str, Symbol] = {}
        self._any: Symbol | None = None
        self._depth = 0

    def write_root(self, schema: Any) -> Symbol:
        """Returns a symbol for the values of a whole schema."""
        self._root, self._references = schema, {}
        return self._write(schema)

    def _write(self, schema: Any) -> Symbol:
        self._depth += 1
        if self._depth > MAX_SCHEMA_DEPTH:
            raise UntranslatableError("a JSON Schema that is nested too deeply")
        symbol = self._write_schema(schema)
        self._depth -= 1
        return symbol

    def _write_schema(self, schema: Any) -> Symbol:
        if schema is True or (isinstance(schema, Mapping) and not set(schema) - ANNOTATIONS):
            return self._write_any()
        if not isinstance(schema, Mapping):
            raise UntranslatableError("a JSON Schema that allows nothing")
        keys = set(schema) - ANNOTATIONS
        for name in ("$ref", "const", "enum", "anyOf", "oneOf", "allOf"):
            if name in keys:
                self._check_keywords(keys, {name, "type"} if name in ("const", "enum") else {name})
                return self._write_combination(name, schema[name])
        types = schema.get("type")
        names = [types] if isinstance(types, str) else types
        if not isinstance(names, Sequence) or not names or not set(names) <= set(KEYWORDS):
            raise UntranslatableError("a JSON Schema without a type")
        self._check_keywords(keys, {"type"}.union(*(KEYWORDS[name] for name in names)))
        return self._rules.add("v", *((self._write_type(name, schema),) for name in names))

    def _check_keywords(self, keys: set[str], known: set[str]) -> None:
        if unknown := sorted(keys - known):
            raise UntranslatableError(
                f"the JSON Schema keyword {unknown[0]}" + (f" beside {min(known)}" if known else "")
            )

    def _write_combination(self, name: str, value: Any) -> Symbol:
        if name == "$ref":
            return self._write_reference(value)
        if name in ("const", "enum"):
            values = [value] if name == "const" else value
            return self._rules.add("v", *((self._write_constant(each),) for each in values))
        if name == "allOf" and len(value) != 1:
            raise UntranslatableError("the JSON Schema keyword allOf")
        return self._rules.add("v", *((self._write(each),) for each in value))

    def _write_reference(self, pointer: str) -> Symbol:
        if pointer not in self._references:
            target = self._root
            if not pointer.startswith("#"):
                raise UntranslatableError("a JSON Schema reference to elsewhere")
            for part in pointer.removeprefix("#").split("/")[1:]:
                name = part.replace("~1", "/").replace("~0", "~")
                if not isinstance(target, Mapping) or name not in target:
                    raise UntranslatableError(f"the JSON Schema reference {pointer}")
                target = target[name]
            symbol = self._references[pointer] = self._rules.reserve("r")
            self._rules.define(symbol, (self._write(target),))
        return self._references[pointer]

    def _write_constant(self, value: Any) -> Symbol:
        if isinstance(value, str):
            return self._rules.literal(_encode_text(value))
        if value is None or isinstance(value, bool | int):
            return self._rules.literal(json.dumps(value))
        raise UntranslatableError("a JSON constant that is an object, an array or a fraction")

    def _write_type(self, name: str, schema: Mapping[str, Any]) -> Symbol:
        if name == "object":
            return self._write_object(schema)
        if name == "array":
            return self._write_array(schema)
        if name == "string":
            return self._write_string(schema)
        if name in ("integer", "number"):
            return self._regular.write(RegexReader(self._table, _number_pattern(name, schema)).read())
        literals = ("true", "false") if name == "boolean" else ("null",)
        return self._rules.add("v", *((self._rules.literal(each),) for each in literals))

    def _write_any(self) -> Symbol:
        if self._any is None:
            self._any = self._rules.reserve("any")
            names = [name for name in KEYWORDS if name != "integer"]
            self._rules.define(self._any, *((self._write_type(name, {}),) for name in names))
        return self._any

    # Strings

    def _write_string(self, schema: Mapping[str, Any]) -> Symbol:
        quote, body = self._table.literal('"'), self._string_body
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        parts = []
        if low or high is not None:
            letter = self._encode_charset(invert(()))
            parts.append(self._table.repeat(letter, low, UNBOUNDED if high is None else high))
        if (pattern := schema.get("pattern")) is not None:
            parts.append(self._encode(self._read_pattern(pattern)))
        if (name := schema.get("format")) is not None:
            if name not in STRING_FORMATS:
                raise UntranslatableError(f"the JSON Schema format {name}")
            parts.append(RegexReader(self._table, STRING_FORMATS[name]).read())
        if parts:
            # A bound of the length alone is written by its structure: an automaton would have a state for each length.
            body = parts[0] if len(parts) == 1 else self._table.both(*parts)
        return self._regular.write(self._table.concat(quote, body, quote))

    def _read_pattern(self, pattern: str) -> int:
        """Returns the expression of texts that contain a match."""
        found = RegexReader(self._table, pattern).read()
        head = () if pattern.startswith("^") else (ANYTHING,)
        tail = () if pattern.endswith("$") and not pattern.endswith("\\$") else (ANYTHING,)
        if "|" in pattern and (pattern.startswith("^") or pattern.endswith("$")):
            raise UntranslatableError("alternatives beside ^ or $ in a pattern")
        return self._table.concat(*head, found, *tail)

    def _encode(self, number: int) -> int:
        """Returns the expression of the same texts as they are written in a JSON string."""
        kind, *operands = self._table.keys[number]
        if number == ANYTHING:
            return self._table.repeat(self._encode_charset(invert(())), 0, UNBOUNDED)
        if kind == "chars":
            return self._encode_charset(operands[0])
        if kind == "repeat":
            return self._table.repeat(self._encode(operands[0]), *operands[1:])
        if kind == "empty":
            return number
        parts = map(self._encode, operands)
        return self._table.concat(*parts) if kind == "concat" else self._table.either(*parts)

    def _encode_charset(self, charset: Charset) -> int:
        escaped = [
            self._table.literal(escape)
            for letter, escape in ESCAPES.items()
            if any(low <= ord(letter) <= high for low, high in charset)
        ]
        return self._table.either(self._table.chars(intersect(charset, UNESCAPED_CHARS)), *escaped)

    # Objects and arrays

    def _write_object(self, schema: Mapping[str, Any]) -> Symbol:
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        others = schema.get("additionalProperties", True)
        if missing := [name for name in required if name not in properties]:
            raise UntranslatableError(f"the required property {missing[0]}, which the JSON Schema does not have")
        comma, literal = self._sign(","), self._rules.literal
        tail, head = self._blanks, EMPTY_LITERAL
        if others is not False:
            other = (self._write_other_key(properties), *self._sign(":"), self._write(others))
            more = self._rules.repeat(self._rules.add("o", (*comma, *other)), 0, None)
            tail = self._rules.add("o", (more, self._blanks))
            head = self._rules.add("o", (*other, tail), ())
        for name in reversed(properties):
            member = (literal(_encode_text(name)), *self._sign(":"), self._write(properties[name]))
            is_optional = name not in required
            head = self._rules.add("o", (*member, tail), *([(head,)] if is_optional else []))
            tail = self._rules.add("o", (*comma, *member, tail), *([(tail,)] if is_optional else []))
        return self._rules.add("v", (literal("{"), self._blanks, head, literal("}")))

    def _write_other_key(self, properties: Mapping[str, Any]) -> Symbol:
        table, quote = self._table, self._table.literal('"')
        names = [table.literal(_encode_text(name)[1:-1]) for name in properties]
        body = table.both(self._string_body, table.complement(table.either(*names))) if names else self._string_body
        return self._regular.write(table.concat(quote, body, quote))

    def _sign(self, text: str) -> tuple[Symbol, ...]:
        return (self._blanks, self._rules.literal(text), self._blanks)

    def _write_array(self, schema: Mapping[str, Any]) -> Symbol:
        prefix, items = schema.get("prefixItems") or [], schema.get("items", True)
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        comma, literal, blanks = self._sign(","), self._rules.literal, self._blanks
        if prefix:
            if (items is not False and high != len(prefix)) or low > len(prefix) or (high or len(prefix)) < len(prefix):
                raise UntranslatableError("the JSON Schema keyword prefixItems beside further items")
            members = [symbol for each in prefix for symbol in (*comma, self._write(each))][len(comma) :]
            return self._rules.add("v", (literal("["), blanks, *members, blanks, literal("]")))
        empty = [(literal("["), blanks, literal("]"))] if low == 0 else []
        if items is False or high == 0:
            return self._rules.add("v", *empty)
        item = self._write(items)
        more = self._rules.repeat(
            self._rules.add("i", (*comma, item)), max(low - 1, 0), None if high is None else high - 1
        )
        return self._rules.add("v", *empty, (literal("["), blanks, item, more, blanks, literal("]")))


def _number_pattern(name: str, schema: Mapping[str, Any]) -> str:
    """Returns the expression of an integer or a number within the schema's bounds."""
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    bounds = [each for each in (low, high, above, below) if each is not None]
    if not bounds:
        return INTEGER if name == "integer" else NUMBER
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in bounds):
        raise UntranslatableError("a bound of numbers that is a fraction")
    if name == "integer":
        lows = [each for each in (low, None if above is None else above + 1) if each is not None]
        highs = [each for each in (high, None if below is None else below - 1) if each is not None]
        return integer_between(max(lows, default=None), min(highs, default=None))
    if (low is not None and above is not None) or (high is not None and below is not None):
        raise UntranslatableError("two bounds of numbers at one side")
    return number_between(
        low if above is None else above,
        high if below is None else below,
        above=above is not None,
        below=below is not None,
    )


def _encode_text(text: str) -> str:
    """Returns a JSON string as llguidance writes it: without escapes that are not needed."""
    return json.dumps(text, ensure_ascii=False)
