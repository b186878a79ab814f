"""Checks of JSON values against type annotations. The first fault is an error in the words of OpenAI's API.

msgspec decodes valid requests. If it rejects one, these checks find the fault in the same annotations: msgspec's own
message knows neither the index of an array's entry nor the value. A `Check` is never called with null, since every
optional field may be null.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, structs

from antiphon.app.errors import ApiError, clip_text, invalid_type, invalid_value, missing_field, unknown_field
from antiphon.app.requests.fields.annotations import Check, Checked, is_struct, list_values, split_annotated
from antiphon.events.tools import ShortName, ToolName

MAX_QUOTED_BITS = 64
T = TypeVar("T")


_JSON_TYPES: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("a boolean", (bool,)),
    int: ("an integer", (int,)),
    float: ("a decimal", (int, float)),
    str: ("a string", (str,)),
    Literal: ("a string", (str,)),
    list: ("an array", (list,)),
    tuple: ("an array", (list,)),
    dict: ("an object", (dict,)),
    Struct: ("an object", (dict,)),
}
"""Name of a type for error messages, and the types of decoded JSON values that it accepts."""


@cache
def build_check(annotation: Any) -> Check:
    """Returns the check of values of a type: JSON types, `Literal`, unions, `Annotated` with `Meta`, and structs.

    Example: `build_check(Annotated[int, Meta(ge=1)])(0, "n")` raises "Invalid 'n': integer below minimum value. …".
    """
    inner, metadata = split_annotated(annotation)
    check_type = _build_unchecked(inner, _read_constraints(metadata))
    checks = [entry.check for entry in metadata if isinstance(entry, Checked)]
    if not checks:
        return check_type

    def check(value: Any, path: str) -> None:
        check_type(value, path)
        for check_value in checks:
            check_value(value, path)

    return check


def require_value(value: T | None, path: str) -> T:
    """Returns the value of a required field. Raises `ApiError` 400 if it is missing or null."""
    if value is None:
        raise missing_field(path)
    return value


def check_choice(value: Any, values: Sequence[str], path: str) -> None:
    """Checks for a string that is one of `values`."""
    check_string(value, path)
    if value not in values:
        raise invalid_value(path, f"Invalid value: '{clip_text(value)}'. Supported values are: {join_words(values)}.")


def require_key(value: Mapping[str, Any], key: str, path: str) -> Any:
    """Returns `value[key]`. Raises `ApiError` 400 if it is missing or null."""
    if value.get(key) is None:
        raise missing_field(f"{path}.{key}")
    return value[key]


def require_string(value: Mapping[str, Any], key: str, path: str) -> str:
    """Returns the string `value[key]`. Raises `ApiError` 400 if it is missing, null or no string."""
    text = require_key(value, key, path)
    check_string(text, f"{path}.{key}")
    return str(text)


def join_words(values: Sequence[str]) -> str:
    """Joins values to a list for messages: 'a', 'b', and 'c'."""
    quoted = [f"'{value}'" for value in values]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


def _accept_any(value: Any, path: str) -> None:
    """Accepts any value."""


def _read_constraints(metadata: Iterable[Any]) -> dict[str, Any]:
    """Returns the constraints of msgspec by name."""
    return {name: value for meta in metadata if isinstance(meta, Meta) for name, value in meta.__rich_repr__()}


def _build_unchecked(annotation: Any, constraints: dict[str, Any]) -> Check:
    members = list_values(annotation)
    if Any in members:
        return _accept_any
    if all(is_struct(member) and member.__struct_config__.tag is not None for member in members):
        return _build_tagged(members)
    if len(members) == 1:
        return _build_plain(members[0], constraints)
    return _build_union(members)


def _json_type(annotation: Any) -> tuple[str, tuple[type, ...]]:
    plain = split_annotated(annotation)[0]
    return _JSON_TYPES[Struct if is_struct(plain) else get_origin(plain) or plain]


def _build_plain(kind: Any, constraints: dict[str, Any]) -> Check:
    if get_origin(kind) is Annotated:
        return build_check(kind)
    name, accepted = _json_type(kind)
    check_content = _build_content(kind, constraints)

    def check(value: Any, path: str) -> None:
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            raise invalid_type(path, name, value)
        check_content(value, path)

    return check


def _build_content(kind: Any, constraints: dict[str, Any]) -> Check:
    """Returns the check of a value that has the right JSON type."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if kind in (int, float):
        return _build_bounds("integer" if kind is int else "decimal", constraints)
    if kind is str:
        return _build_string(constraints)
    if origin is Literal:
        return lambda value, path: check_choice(value, arguments, path)
    if origin in (list, tuple):
        return _build_array(build_check(arguments[0]) if arguments else _accept_any, constraints.get("max_length"))
    if origin is dict:
        key, value = arguments or (Any, Any)
        check_key = _accept_any if key is str else build_check(key)
        return _build_map(check_key, build_check(value), constraints.get("max_length"))
    return _build_struct(kind) if is_struct(kind) else _accept_any


def _build_bounds(kind: str, constraints: dict[str, Any]) -> Check:
    low, high = constraints.get("ge", constraints.get("gt")), constraints.get("le")
    excludes_low = "gt" in constraints

    def check(value: float, path: str) -> None:
        if low is not None and (value <= low if excludes_low else value < low):
            side, bound, sign = "below minimum", low, ">" if excludes_low else ">="
        elif high is not None and value > high:
            side, bound, sign = "above maximum", high, "<="
        else:
            return
        expectation = f"Expected a value {sign} {bound}, but got {_quote_number(value)} instead."
        code = f"{kind}_{side.replace('minimum', 'min').replace('maximum', 'max').replace(' ', '_')}_value"
        raise ApiError(400, code, f"Invalid '{path}': {kind} {side} value. {expectation}", path)

    return check


def _build_string(constraints: dict[str, Any]) -> Check:
    longest, pattern = constraints.get("max_length"), constraints.get("pattern")

    def check(value: str, path: str) -> None:
        if longest is not None and len(value) > longest:
            expectation = f"Expected a string with maximum length {longest}, but got a string with length {len(value)}"
            message = f"Invalid '{path}': string too long. {expectation} instead."
            raise ApiError(400, "string_above_max_length", message, path)
        if pattern is not None and not re.search(pattern, value):
            shown = pattern.replace(r"\Z", "$")
            expectation = f"Expected a string that matches the pattern '{shown}'."
            raise invalid_value(path, f"Invalid '{path}': string does not match pattern. {expectation}")

    return check


def _build_array(check_entry: Check, longest: int | None) -> Check:
    def check(value: list[Any], path: str) -> None:
        if longest is not None and len(value) > longest:
            message = f"Invalid '{path}': array too long. Expected at most {longest} entries, but got {len(value)}."
            raise ApiError(400, "array_above_max_length", message, path)
        if check_entry is not _accept_any:
            for index, entry in enumerate(value):
                check_entry(entry, f"{path}[{index}]")

    return check


def _build_map(check_key: Check, check_value: Check, most: int | None) -> Check:
    def check(value: dict[str, Any], path: str) -> None:
        if most is not None and len(value) > most:
            expectation = f"Expected an object with at most {most} properties, but got {len(value)} instead."
            message = f"Invalid '{path}': too many properties. {expectation}"
            raise ApiError(400, "object_above_max_properties", message, path)
        if check_key is _accept_any and check_value is _accept_any:
            return
        for key, entry in value.items():
            entry_path = f"{path}.{clip_text(key)}"
            check_key(key, entry_path)
            check_value(entry, entry_path)

    return check


def _build_struct(kind: type[Struct]) -> Check:
    config, hints = kind.__struct_config__, get_type_hints(kind, include_extras=True)
    fields = structs.fields(kind)
    checks = {field.encode_name: build_check(hints[field.name]) for field in fields}
    required = {field.encode_name for field in fields if field.required}
    known = checks.keys() | {config.tag_field}

    def check(value: dict[str, Any], path: str) -> None:
        prefix = f"{path}." if path else ""
        if config.forbid_unknown_fields:
            for key, entry in value.items():
                if key not in known and entry is not None:
                    raise unknown_field(f"{prefix}{clip_text(key)}")
        for name, check_field in checks.items():
            if value.get(name) is not None:
                check_field(value[name], f"{prefix}{name}")
            elif name in required:
                raise missing_field(f"{prefix}{name}")

    return check


def _build_tagged(kinds: Sequence[type[Struct]]) -> Check:
    """Returns the check of an object whose tag selects one of several structs."""
    tag_field = str(kinds[0].__struct_config__.tag_field)
    checks = {str(kind.__struct_config__.tag): _build_struct(kind) for kind in kinds}

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise invalid_type(path, "an object", value)
        tag, tag_path = value.get(tag_field), f"{path}.{tag_field}"
        if tag is None:
            raise missing_field(tag_path)
        check_choice(tag, list(checks), tag_path)
        checks[tag](value, path)

    return check


def _build_union(members: Sequence[Any]) -> Check:
    checks = [(_json_type(member)[1], build_check(member)) for member in members]
    expected = " or ".join(dict.fromkeys(_json_type(member)[0] for member in members))

    def check(value: Any, path: str) -> None:
        for accepted, check_member in checks:
            if isinstance(value, accepted) and (bool in accepted or not isinstance(value, bool)):
                check_member(value, path)
                return
        raise invalid_type(path, expected, value)

    return check


def _quote_number(value: float) -> str:
    """Returns the digits of a number, shortened. Python refuses to write integers of more than 4 300 digits."""
    if isinstance(value, int) and value.bit_length() > MAX_QUOTED_BITS:
        return "an integer of more than 64 bits"
    return clip_text(str(value), 40)


check_boolean = build_check(bool)
check_string = build_check(str)
check_object = build_check(dict[str, Any])
check_objects = build_check(list[dict[str, Any]])
check_content = build_check(str | list[dict[str, Any]])
check_tool_name = build_check(ToolName)
check_short_name = build_check(ShortName)
