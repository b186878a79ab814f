"""What a field's value must look like: small functions that say yes or raise an OpenAI-shaped error.

A `Check` takes a value and its path and returns nothing; null never reaches one, since every optional field may be
null. Codes and wording follow the real API, so that a client that reads them meets what it knows.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.app.errors import ApiError, clip_text, invalid_type, invalid_value, missing_field, unknown_field

Validator = Callable[[Any, str], None]

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of tools and formats. They are pasted into prompts, so nothing else may stand in them."""


def is_boolean(value: Any, path: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise invalid_type(path, "a boolean", value)


def is_object(value: Any, path: str) -> None:
    """An object, whatever is in it."""
    if not isinstance(value, dict):
        raise invalid_type(path, "an object", value)


def is_array(value: Any, path: str) -> None:
    """An array, whatever is in it."""
    if not isinstance(value, list):
        raise invalid_type(path, "an array", value)


def accept_any(value: Any, path: str) -> None:
    """No rule: the field is looked at elsewhere, or refused whatever it holds."""


def integer_between(low: int | None = None, high: int | None = None) -> Validator:
    """A whole number from `low` to `high`."""

    def check(value: Any, path: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid_type(path, "an integer", value)
        _check_bounds(value, path, low, high, "integer")

    return check


def number_between(low: float, high: float) -> Validator:
    """A number from `low` to `high`."""

    def check(value: Any, path: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid_type(path, "a decimal", value)
        _check_bounds(value, path, low, high, "decimal")

    return check


def string_like(longest: int | None = None, pattern: re.Pattern[str] | None = None) -> Validator:
    """Text of at most `longest` characters that matches `pattern` as a whole."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, str):
            raise invalid_type(path, "a string", value)
        if longest is not None and len(value) > longest:
            raise _too_long(path, longest, len(value))
        if pattern is not None and not pattern.fullmatch(value):
            asked = f"Expected a string that matches the pattern '^{pattern.pattern}$'."
            raise invalid_value(path, f"Invalid '{path}': string does not match pattern. {asked}")

    return check


def one_of(values: Sequence[str]) -> Validator:
    """One of some words."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, str):
            raise invalid_type(path, "a string", value)
        if value not in values:
            raise invalid_value(
                path, f"Invalid value: '{clip_text(value)}'. Supported values are: {join_words(values)}."
            )

    return check


def array_of(item: Validator, longest: int | None = None) -> Validator:
    """An array whose entries all pass `item`."""

    def check(value: Any, path: str) -> None:
        is_array(value, path)
        if longest is not None and len(value) > longest:
            message = f"Invalid '{path}': array too long. Expected at most {longest} entries, but got {len(value)}."
            raise ApiError(400, "array_above_max_length", message, path)
        for index, entry in enumerate(value):
            item(entry, f"{path}[{index}]")

    return check


def string_or_array(text: Validator, many: Validator) -> Validator:
    """A string that passes `text`, or an array that passes `many`."""

    def check(value: Any, path: str) -> None:
        if isinstance(value, list):
            many(value, path)
        elif isinstance(value, str):
            text(value, path)
        else:
            raise invalid_type(path, "a string or an array", value)

    return check


def object_of(known: Mapping[str, Validator]) -> Validator:
    """An object with these keys and no others; any of them may be null or missing."""

    def check(value: Any, path: str) -> None:
        is_object(value, path)
        for key, inside in value.items():
            below = f"{path}.{key}"
            if key not in known:
                raise unknown_field(below)
            if inside is not None:
                known[key](inside, below)

    return check


def string_map(value: Any, path: str, *, most: int | None = 16, key: int = 64, text: int = 512) -> None:
    """A flat object of strings, as `metadata` is. `most` None: no limits at all, only the shape."""
    is_object(value, path)
    if most is not None and len(value) > most:
        asked = f"Expected an object with at most {most} properties, but got {len(value)} instead."
        raise ApiError(400, "object_above_max_properties", f"Invalid '{path}': too many properties. {asked}", path)
    for name, said in value.items():
        below = f"{path}.{clip_text(name)}"
        if most is not None and len(name) > key:
            raise _too_long(below, key, len(name))
        string_like(text if most is not None else None)(said, below)


def token_bias(value: Any, path: str) -> None:
    """`logit_bias`: token ids, written as strings, to numbers from -100 to 100; at most 1024 of them."""
    is_object(value, path)
    if len(value) > 1024:
        message = f"Invalid '{path}': too many properties. Expected at most 1024, but got {len(value)} instead."
        raise ApiError(400, "object_above_max_properties", message, path)
    for token, added in value.items():
        below = f"{path}.{clip_text(token)}"
        if not re.fullmatch(r"[0-9]{1,9}", token):
            raise invalid_value(below, f"Invalid '{below}': keys are token ids.")
        number_between(-100, 100)(added, below)


def require_key(value: Mapping[str, Any], key: str, path: str) -> Any:
    """`value[key]`, which must be there and not null."""
    if value.get(key) is None:
        raise missing_field(f"{path}.{key}")
    return value[key]


def join_words(values: Sequence[str]) -> str:
    """'a', 'b', and 'c'."""
    quoted = [f"'{value}'" for value in values]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


def _check_bounds(value: float, path: str, low: float | None, high: float | None, kind: str) -> None:
    if low is not None and value < low:
        side, bound, sign = "below minimum", low, ">="
    elif high is not None and value > high:
        side, bound, sign = "above maximum", high, "<="
    else:
        return
    asked = f"Expected a value {sign} {bound}, but got {clip_text(str(value), 40)} instead."
    code = f"{kind}_{side.replace('minimum', 'min').replace('maximum', 'max').replace(' ', '_')}_value"
    raise ApiError(400, code, f"Invalid '{path}': {kind} {side} value. {asked}", path)


def _too_long(path: str, longest: int, length: int) -> ApiError:
    asked = f"Expected a string with maximum length {longest}, but got a string with length {length} instead."
    return ApiError(400, "string_above_max_length", f"Invalid '{path}': string too long. {asked}", path)
