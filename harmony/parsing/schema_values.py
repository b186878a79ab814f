"""Values written as bare text, told apart by a tool's schema and put into JSON.

Dialects that write `<parameter=count>3</parameter>` say nothing of types; the schema does. What it leaves open is read
as text, which is what the models were trained on. Every function here is total: a value that does not fit its type
becomes a JSON string, since the tool can judge better than we whether it will do.
"""

import ast
import contextlib
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

_ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
STRING_ONLY = frozenset({"string"})
"""The types of what can only be a string."""
_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (type(None), "null"),
    (list, "array"),
    (dict, "object"),
)
_FIRST_CHARS = {
    "number": "-0123456789",
    "integer": "-0123456789",
    "boolean": "tTfF",
    "null": "nN",
    "object": "{",
    "array": "[",
}
_WORDS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "TRUE": "true",
    "FALSE": "false",
    "NULL": "null",
    "Null": "null",
}
_HALVES = re.compile("[\ud800-\udfff]")
"""Halves of a character, which escapes can write and nobody can send."""
_MAX_REF_DEPTH = 16
_MAX_LITERAL_CHARS = 100_000


def allowed_types(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types a schema allows, as far as it tells; the empty set where it does not."""
    if not isinstance(schema, Mapping) or depth > _MAX_REF_DEPTH:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return allowed_types(_resolve_reference(reference, root), root, depth + 1)
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named}) & _ALL_TYPES
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str)) & _ALL_TYPES
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(map(type_of, values))
    return _combined_types(schema, root, depth)


def resolve_schema(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema behind its references and combinations of one part; a constant as the one value there is."""
    here = schema if isinstance(schema, Mapping) else {}
    for _ in range(_MAX_REF_DEPTH):
        parts: list[Any] = next(
            (here[word] for word in ("anyOf", "oneOf", "allOf") if isinstance(here.get(word), list)), []
        )
        inside = (
            _resolve_reference(here["$ref"], root)
            if isinstance(here.get("$ref"), str)
            else parts[0]
            if len(parts) == 1
            else None
        )
        if not isinstance(inside, Mapping):
            break
        here = inside
    return {**here, "enum": [here["const"]]} if "const" in here else here


def self_contained(schema: object, root: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema by itself, with the definitions that it may refer to."""
    definitions = {word: root[word] for word in ("$defs", "definitions") if word in root}
    return {**definitions, **schema} if isinstance(schema, Mapping) else {}


def _combined_types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for word in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(word) or () if isinstance(schema.get(word), list) else ():
            found |= allowed_types(part, root, depth + 1)
    if not found and "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if not found and "items" in schema else found


def _resolve_reference(reference: str, root: Mapping[str, Any]) -> object:
    here: object = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if not isinstance(here, Mapping):
            return None
        here = here.get(step.replace("~1", "/").replace("~0", "~"))
    return here


def type_of(value: object) -> str:
    """The JSON type of a value."""
    return next(name for kind, name in _TYPE_NAMES if isinstance(value, kind))


def can_stream_as_string(allowed: frozenset[str], first: str) -> bool:
    """Whether a value that begins with this character can only be a string, and so may be said as it comes."""
    if allowed and "string" not in allowed:
        return False
    return not any(first in _FIRST_CHARS[name] for name in allowed - {"string"})


def cast_value(text: str, allowed: frozenset[str]) -> str:
    """The value as JSON, written as the model wrote it where that is JSON already."""
    written = text.strip()
    written = _WORDS.get(written, written)
    value = _parse_json(written)
    if value is not None and _fits_types(value[0], allowed):
        return written
    if (
        allowed & {"object", "array"}
        and (value := _parse_python_literal(text.strip())) is not None
        and _fits_types(value[0], allowed)
    ):
        return encode_json(value[0])
    return encode_string(text)


def as_json(text: str) -> str:
    """Text that is said to be JSON, as it is where it is; else as a JSON string."""
    written = text.strip()
    return written if _parse_json(written) is not None else encode_string(text)


def parse_members(text: str) -> dict[str, str]:
    """The members of a JSON object, each as JSON; what is no object is a member called `arguments`."""
    value = _parse_json(text.strip())
    if value is not None and isinstance(value[0], dict):
        with contextlib.suppress(ValueError):
            return {name: encode_json(inner) for name, inner in value[0].items()}
    return {"arguments": cast_value(text, frozenset())}


_ENCODER = json.JSONEncoder(ensure_ascii=False)  # `json.dumps` makes one for each call, and tokens are many


def encode_json(value: object) -> str:
    """A value as JSON that everybody can send and read. Raises `ValueError` for numbers that JSON has not."""
    return _HALVES.sub("\ufffd", json.dumps(value, ensure_ascii=False, allow_nan=False))


def encode_string(text: str) -> str:
    """Text as a JSON string."""
    return _ENCODER.encode(text)


def _fits_types(value: object, allowed: frozenset[str]) -> bool:
    name = type_of(value)
    whole = name == "integer" or (isinstance(value, float) and value.is_integer())
    return name != "string" and (
        name in allowed
        or (name == "integer" and "number" in allowed)
        or (name == "number" and whole and "integer" in allowed)
    )


def _parse_json(text: str) -> tuple[object] | None:
    try:
        return (json.loads(text, parse_constant=_refuse_constant),)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> object:
    raise ValueError(name)  # NaN and Infinity are Python's JSON, nobody else's


def _parse_python_literal(text: str) -> tuple[object] | None:
    """A Python list or dict, which models write now and then."""
    if len(text) > _MAX_LITERAL_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python will not know some day
            value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return (value,)
