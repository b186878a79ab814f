"""From bytes to plain JSON values, and from those to our structs; every fault is an `ApiError` with a path.

Stricter than a JSON reader must be: no byte order mark, no NaN or number past a double, no lone surrogate, at most
`DEEPEST` levels. Of a key that occurs twice the last one counts. An escaped NUL is text like any other.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from antiphon.app.errors import ApiError, clip_text, invalid_type, invalid_value, missing_field

MAX_DEPTH = 128

T = TypeVar("T")
_decoder = msgspec.json.Decoder()
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`")
_TYPE = re.compile(r"Expected `(?P<expected>.*)`, got `(?P<got>.*)`")
_ARTICLES = {"str": "a string", "int": "an integer", "float": "a decimal", "bool": "a boolean", "array": "an array"}


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body. Raises `ApiError` 400."""
    try:
        value = _decoder.decode(body)
        _check_depth(value)
    except RecursionError:
        raise _nesting_error() from None
    except UnicodeDecodeError:
        raise _invalid_json("it is not UTF-8") from None
    except msgspec.ValidationError as error:
        raise _number_error(body, str(error)) from None
    except msgspec.DecodeError as error:
        raise _number_error(body, str(error)) from None
    if not isinstance(value, dict):
        raise invalid_type("body", "an object", value)
    return value


def convert_value(value: Any, kind: type[T], path: str) -> T:
    """`value` as `kind`, strictly. `path` is where it stands in the request. Raises `ApiError` 400."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _translate_error(str(error), path) from None


def _translate_error(said: str, path: str) -> ApiError:
    """A fault in the words of msgspec as an OpenAI error: it names the fault and, behind `$`, the place."""
    match = _AT.match(said)
    what, below = (match["what"], match["path"] or "") if match else (said, "")
    place = f"{path}{below.replace('[...]', '')}".lstrip(".")
    if absent := _MISSING.match(what):
        return missing_field(f"{place}.{absent['field']}".lstrip("."))
    if wrong := _TYPE.match(what):
        expected = " or ".join(_ARTICLES.get(name, "an object") for name in wrong["expected"].split(" | "))
        got = _ARTICLES.get(wrong["got"], wrong["got"] if wrong["got"] == "null" else "an object")
        message = f"Invalid type for '{place}': expected {expected}, but got {got} instead."
        return ApiError(400, "invalid_type", message, place)
    return invalid_value(place, f"Invalid '{place}': {clip_text(what)}.")


def _check_depth(value: Any) -> None:
    """Level by level, without recursion: what comes next may be handed to recursive readers."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _child_values(parent)]
        if not level:
            return
    raise _nesting_error()


def _child_values(value: Any) -> list[Any]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inside if isinstance(child, dict | list)]


def _number_error(body: bytes, said: str) -> ApiError:
    """The error for a body that is no JSON; where only a number is to blame, the error names its field."""
    try:
        place = next(_not_finite(json.loads(body), ""), None)
    except (ValueError, RecursionError):
        place = None
    if place is None:
        return _invalid_json(said)
    return invalid_value(place.lstrip("."), f"Invalid '{place.lstrip('.')}': expected a finite number.")


def _not_finite(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _not_finite(child, f"{path}.{key}")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _not_finite(child, f"{path}[{index}]")


def _invalid_json(why: str) -> ApiError:
    return ApiError(400, "invalid_json", f"We could not parse the JSON body of your request: {clip_text(why)}.")


def _nesting_error() -> ApiError:
    return _invalid_json(f"it is nested more than {MAX_DEPTH} levels deep")
