"""Converts values written as bare text to JSON, with the types of a tool's schema.

Dialects that write `<parameter=count>3</parameter>` do not state types; the schema does. A value whose type the
schema leaves open is read as text, which is what the models were trained on. A value that does not fit its type
becomes a JSON string rather than an error, since the tool can judge better whether it is acceptable.
"""

import ast
import contextlib
import json
import re
import warnings
from collections.abc import Mapping
from types import UnionType
from typing import Any

_ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
STRING_ONLY = frozenset({"string"})
"""Types of a value that can only be a string."""
_TYPE_NAMES: tuple[tuple[type | UnionType, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (type(None), "null"),
    (list | tuple, "array"),
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
_WORD_LITERALS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "TRUE": "true",
    "FALSE": "false",
    "NULL": "null",
    "Null": "null",
}
_UNPAIRED_SURROGATES = re.compile("[\ud800-\udfff]")
"""Unpaired surrogates: escapes of JSON and of Python can spell them, UTF-8 cannot encode them."""
_STRING_ESCAPE = re.compile(
    r"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape in JSON: a pair of surrogates, one without its other half, or any other."""
_MAX_REF_DEPTH = 16
_MAX_LITERAL_CHARS = 100_000


def allowed_types(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Returns the JSON types that a schema allows; the empty set if it leaves them open."""
    if not isinstance(schema, Mapping) or depth > _MAX_REF_DEPTH:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return allowed_types(_resolve_reference(reference, root), root, depth + 1)
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared}) & _ALL_TYPES
    if isinstance(declared, list):
        return frozenset(name for name in declared if isinstance(name, str)) & _ALL_TYPES
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(map(type_of, values))
    return _combined_types(schema, root, depth)


def resolve_schema(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follows references and combinations of one part to the schema itself. `const` becomes `enum`."""
    resolved = schema if isinstance(schema, Mapping) else {}
    for _ in range(_MAX_REF_DEPTH):
        parts: list[Any] = next(
            (resolved[keyword] for keyword in ("anyOf", "oneOf", "allOf") if isinstance(resolved.get(keyword), list)),
            [],
        )
        target = (
            _resolve_reference(resolved["$ref"], root)
            if isinstance(resolved.get("$ref"), str)
            else parts[0]
            if len(parts) == 1
            else None
        )
        if not isinstance(target, Mapping):
            break
        resolved = target
    return {**resolved, "enum": [resolved["const"]]} if "const" in resolved else resolved


def self_contained(schema: object, root: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a part of a schema with the definitions that it may refer to."""
    definitions = {keyword: root[keyword] for keyword in ("$defs", "definitions") if keyword in root}
    return {**definitions, **schema} if isinstance(schema, Mapping) else {}


def _combined_types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for keyword in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(keyword) or () if isinstance(schema.get(keyword), list) else ():
            found |= allowed_types(part, root, depth + 1)
    if not found and "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if not found and "items" in schema else found


def _resolve_reference(reference: str, root: Mapping[str, Any]) -> object:
    node: object = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if not isinstance(node, Mapping):
            return None
        node = node.get(step.replace("~1", "/").replace("~0", "~"))
    return node


def type_of(value: object) -> str:
    """Returns the JSON type of a value. A tuple is an array, as in `json.dumps`."""
    return next(name for kind, name in _TYPE_NAMES if isinstance(value, kind))


def can_stream_as_string(allowed: frozenset[str], first: str) -> bool:
    """Tells whether a value with this first character must be a string, and so can be emitted as it arrives."""
    if allowed and "string" not in allowed:
        return False
    return not any(first in _FIRST_CHARS[name] for name in allowed - {"string"})


def cast_value(text: str, allowed: frozenset[str]) -> str:
    """Returns the value as JSON, unchanged if it already is JSON of an allowed type."""
    normalized = text.strip()
    normalized = _WORD_LITERALS.get(normalized, normalized)
    value = _parse_json(normalized)
    if value is not None and _fits_types(value[0], allowed):
        return normalized
    if (
        allowed & {"object", "array"}
        and (value := _parse_python_literal(text.strip())) is not None
        and _fits_types(value[0], allowed)
    ):
        return encode_json(value[0])
    return encode_string(text)


def as_json(text: str) -> str:
    """Returns the text itself if it is JSON, otherwise the text as a JSON string."""
    stripped = text.strip()
    return stripped if _parse_json(stripped) is not None else encode_string(text)


def parse_members(text: str) -> dict[str, str]:
    """Returns the members of a JSON object, each as JSON. Any other text is one member called `arguments`."""
    with contextlib.suppress(ValueError):
        if isinstance(value := parse_json(text), dict):
            return {name: encode_json(inner) for name, inner in value.items()}
    return {"arguments": cast_value(text, frozenset())}


def parse_json(text: str) -> object:
    """Parses JSON that a model wrote. Raises `ValueError`, also for NaN and infinity and for a value nested too deep.

    Of members of one name the first counts, as everywhere: what was emitted is never revised. Half a pair of surrogates
    becomes a replacement character.
    """
    if "\\u" in text:
        text = _STRING_ESCAPE.sub(lambda escape: r"\ufffd" if escape["half"] else escape[0], text)
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_keep_first_members)
    except RecursionError as error:
        raise ValueError("The value is nested too deep.") from error


def _keep_first_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        members.setdefault(name, value)
    return members


_ENCODER = json.JSONEncoder(ensure_ascii=False)  # `json.dumps` creates one per call, that is, per token


def encode_json(value: object) -> str:
    """Encodes a value as standard JSON, with unpaired surrogates replaced. Raises `ValueError` for NaN and infinity."""
    return _UNPAIRED_SURROGATES.sub("\ufffd", json.dumps(value, ensure_ascii=False, allow_nan=False))


def encode_string(text: str) -> str:
    """Encodes text as a JSON string."""
    return _ENCODER.encode(text)


def _fits_types(value: object, allowed: frozenset[str]) -> bool:
    name = type_of(value)
    is_integral = name == "integer" or (isinstance(value, float) and value.is_integer())
    return name != "string" and (
        name in allowed
        or (name == "integer" and "number" in allowed)
        or (name == "number" and is_integral and "integer" in allowed)
    )


def _parse_json(text: str) -> tuple[object] | None:
    try:
        return (parse_json(text),)
    except ValueError:
        return None


def _refuse_constant(name: str) -> object:
    """Raises `ValueError` for NaN and Infinity, which are extensions of Python's parser."""
    raise ValueError(name)


def _parse_python_literal(text: str) -> tuple[object] | None:
    """Returns a 1-tuple of a Python literal, since models sometimes write lists and dicts as such; or None."""
    if len(text) > _MAX_LITERAL_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation of invalid escapes
            value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return (value,)
