"""Validators of field values: small functions that return nothing or raise an OpenAI-shaped error.

A `Validator` takes a value and its path. It is never called with null, because every optional field may be null. Error
codes and messages follow OpenAI's API, so that clients that read them work here, too. Most validators carry a JSON
Schema, which `read_schema` returns, for the OpenAPI document.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from antiphon.app.base.errors import ApiError, clip_text, invalid_type, invalid_value, missing_field, unknown_field

Validator = Callable[[Any, str], None]
AnyValidator = TypeVar("AnyValidator", bound=Validator)

MAX_INTEGER = 2**31 - 1
"""Largest integer of a field without a smaller bound. Larger ones could not be passed to the engine's process."""
MAX_QUOTED_BITS = 64
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Pattern of tool and format names. They are pasted into prompts, so no other characters are allowed."""


def described(schema: dict[str, Any]) -> Callable[[AnyValidator], AnyValidator]:
    """Returns a decorator that attaches a JSON Schema to a validator: the values that it accepts, null left out."""

    def attach(check: AnyValidator) -> AnyValidator:
        check.__dict__["json_schema"] = schema
        return check

    return attach


def read_schema(check: Validator) -> dict[str, Any] | None:
    """Returns the JSON Schema that a validator carries; None if it has none."""
    return getattr(check, "json_schema", None)


@described({"type": "boolean"})
def is_boolean(value: Any, path: str) -> None:
    """Checks for a boolean."""
    if not isinstance(value, bool):
        raise invalid_type(path, "a boolean", value)


@described({"type": "object"})
def is_object(value: Any, path: str) -> None:
    """Checks for an object with any content."""
    if not isinstance(value, dict):
        raise invalid_type(path, "an object", value)


@described({"type": "array"})
def is_array(value: Any, path: str) -> None:
    """Checks for an array with any content."""
    if not isinstance(value, list):
        raise invalid_type(path, "an array", value)


@described({})
def accept_any(value: Any, path: str) -> None:
    """Accepts any value: the field is checked elsewhere, or always refused."""


def integer_between(low: int = 0, high: int = MAX_INTEGER) -> Validator:
    """Returns a validator of integers from `low` to `high`."""

    @described({"type": "integer", "minimum": low, "maximum": high})
    def check(value: Any, path: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid_type(path, "an integer", value)
        _check_bounds(value, path, low, high, "integer")

    return check


def number_between(low: float, high: float) -> Validator:
    """Returns a validator of numbers from `low` to `high`."""

    @described({"type": "number", "minimum": low, "maximum": high})
    def check(value: Any, path: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid_type(path, "a decimal", value)
        _check_bounds(value, path, low, high, "decimal")

    return check


def string_like(longest: int | None = None, pattern: re.Pattern[str] | None = None) -> Validator:
    """Returns a validator of strings of at most `longest` characters that match all of `pattern`."""
    schema: dict[str, Any] = {"type": "string"} | ({} if longest is None else {"maxLength": longest})

    @described(schema if pattern is None else {**schema, "pattern": f"^(?:{pattern.pattern})$"})
    def check(value: Any, path: str) -> None:
        if not isinstance(value, str):
            raise invalid_type(path, "a string", value)
        if longest is not None and len(value) > longest:
            raise _too_long(path, longest, len(value))
        if pattern is not None and not pattern.fullmatch(value):
            expectation = f"Expected a string that matches the pattern '^{pattern.pattern}$'."
            raise invalid_value(path, f"Invalid '{path}': string does not match pattern. {expectation}")

    return check


def one_of(values: Sequence[str]) -> Validator:
    """Returns a validator of strings that accepts only `values`."""

    @described({"type": "string", "enum": list(values)})
    def check(value: Any, path: str) -> None:
        if not isinstance(value, str):
            raise invalid_type(path, "a string", value)
        if value not in values:
            raise invalid_value(
                path, f"Invalid value: '{clip_text(value)}'. Supported values are: {join_words(values)}."
            )

    return check


def array_of(item: Validator, longest: int | None = None) -> Validator:
    """Returns a validator of arrays of at most `longest` entries, each of which passes `item`."""
    schema = {"type": "array", "items": read_schema(item) or {}}

    @described(schema if longest is None else {**schema, "maxItems": longest})
    def check(value: Any, path: str) -> None:
        is_array(value, path)
        if longest is not None and len(value) > longest:
            message = f"Invalid '{path}': array too long. Expected at most {longest} entries, but got {len(value)}."
            raise ApiError(400, "array_above_max_length", message, path)
        for index, entry in enumerate(value):
            item(entry, f"{path}[{index}]")

    return check


def string_or_array(text: Validator, many: Validator) -> Validator:
    """Returns a validator of strings that pass `text` and arrays that pass `many`."""

    @described({"anyOf": [read_schema(text) or {"type": "string"}, read_schema(many) or {"type": "array"}]})
    def check(value: Any, path: str) -> None:
        if isinstance(value, list):
            many(value, path)
        elif isinstance(value, str):
            text(value, path)
        else:
            raise invalid_type(path, "a string or an array", value)

    return check


def object_of(fields: Mapping[str, Validator]) -> Validator:
    """Returns a validator of objects with these keys and no others. A null counts as left out, whatever its key."""
    properties = {key: nullable(read_schema(inner) or {}) for key, inner in fields.items()}

    @described({"type": "object", "properties": properties, "additionalProperties": {"type": "null"}})
    def check(value: Any, path: str) -> None:
        is_object(value, path)
        for key, field_value in value.items():
            field_path = f"{path}.{key}"
            if field_value is None:
                continue
            if key not in fields:
                raise unknown_field(field_path)
            fields[key](field_value, field_path)

    return check


@described({"type": "object", "additionalProperties": {"type": "string"}})
def string_map(value: Any, path: str, *, most: int | None = 16, key: int = 64, text: int = 512) -> None:
    """Checks a flat object of strings, such as "metadata". If `most` is None, nothing has a limit."""
    is_object(value, path)
    if most is not None and len(value) > most:
        expectation = f"Expected an object with at most {most} properties, but got {len(value)} instead."
        raise ApiError(
            400, "object_above_max_properties", f"Invalid '{path}': too many properties. {expectation}", path
        )
    for name, entry in value.items():
        entry_path = f"{path}.{clip_text(name)}"
        if most is not None and len(name) > key:
            raise _too_long(entry_path, key, len(name))
        string_like(text if most is not None else None)(entry, entry_path)


@described({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}})
def token_bias(value: Any, path: str) -> None:
    """Checks `logit_bias`: at most 1024 token ids, written as strings, mapped to numbers from -100 to 100."""
    is_object(value, path)
    if len(value) > 1024:
        message = f"Invalid '{path}': too many properties. Expected at most 1024, but got {len(value)} instead."
        raise ApiError(400, "object_above_max_properties", message, path)
    for token, bias in value.items():
        entry_path = f"{path}.{clip_text(token)}"
        if not re.fullmatch(r"[0-9]{1,9}", token):
            raise invalid_value(entry_path, f"Invalid '{entry_path}': keys must be token ids.")
        number_between(-100, 100)(bias, entry_path)


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema that accepts null, too: a null counts as left out."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def require_key(value: Mapping[str, Any], key: str, path: str) -> Any:
    """Returns `value[key]`. Raises `ApiError` 400 if it is missing or null."""
    if value.get(key) is None:
        raise missing_field(f"{path}.{key}")
    return value[key]


def join_words(values: Sequence[str]) -> str:
    """Joins values to a list for messages: 'a', 'b', and 'c'."""
    quoted = [f"'{value}'" for value in values]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


def _check_bounds(value: float, path: str, low: float, high: float, kind: str) -> None:
    if value < low:
        side, bound, sign = "below minimum", low, ">="
    elif value > high:
        side, bound, sign = "above maximum", high, "<="
    else:
        return
    expectation = f"Expected a value {sign} {bound}, but got {_quote_number(value)} instead."
    code = f"{kind}_{side.replace('minimum', 'min').replace('maximum', 'max').replace(' ', '_')}_value"
    raise ApiError(400, code, f"Invalid '{path}': {kind} {side} value. {expectation}", path)


def _quote_number(value: float) -> str:
    """Returns the digits of a number, shortened. Python refuses to write integers of more than 4 300 digits."""
    if isinstance(value, int) and value.bit_length() > MAX_QUOTED_BITS:
        return "an integer of more than 64 bits"
    return clip_text(str(value), 40)


def _too_long(path: str, longest: int, length: int) -> ApiError:
    expectation = f"Expected a string with maximum length {longest}, but got a string with length {length} instead."
    return ApiError(400, "string_above_max_length", f"Invalid '{path}': string too long. {expectation}", path)
