"""Decoder of JSON bodies: bytes to JSON values. Each fault is an `ApiError`.

Stricter than JSON requires: no byte order mark, NaN, number beyond the range of a double or lone surrogate, and at most
`MAX_BODY_DEPTH` levels. If a key occurs twice, the last value counts. An escaped NUL is ordinary text.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from antiphon.app.errors import ApiError, clip_text, invalid_value

MAX_BODY_DEPTH = 128
MAX_ECHOED_BYTES = 2 << 20
"""Maximum size of a field that replies repeat. Each of the three events with the whole response has it once, and the
event loop encodes them: 30 ms for each at this size in the worst case."""
ECHOED_FIELDS = ("tools", "tool_choice", "text")
"""Fields that replies repeat and that no other limit bounds. Instructions are part of the prompt."""

_decoder = msgspec.json.Decoder()


def parse_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in a request's body. Raises `ApiError` 400."""
    try:
        value = _decoder.decode(body)
        _check_depth(value)
    except RecursionError:
        raise nesting_error() from None
    except UnicodeDecodeError:
        raise invalid_json("it is not UTF-8") from None
    except msgspec.DecodeError as error:
        raise _number_error(body, str(error)) from None
    if not isinstance(value, dict):
        raise invalid_json("it is not an object")
    return value


def _check_depth(value: Any) -> None:
    """Checks the depth level by level, without recursion. Code after this check may recurse."""
    level = [value]
    for _ in range(MAX_BODY_DEPTH):
        level = [child for parent in level for child in _child_values(parent)]
        if not level:
            return
    raise nesting_error()


def _child_values(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in children if isinstance(child, dict | list)]


def _number_error(body: bytes, message: str) -> ApiError:
    """Returns the error for an invalid body. If a non-finite number is the only fault, the error names its field."""
    try:
        path = next(_not_finite(json.loads(body), ""), None)
    except (ValueError, RecursionError):
        path = None
    if path is None:
        return invalid_json(message)
    return invalid_value(path.lstrip("."), f"Invalid '{path.lstrip('.')}': expected a finite number.")


def _not_finite(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _not_finite(child, f"{path}.{key}")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _not_finite(child, f"{path}[{index}]")


def check_echoed_sizes(body: Mapping[str, Any]) -> None:
    """Checks the fields that replies repeat. A body that is no larger than the limit need not be checked.

    Raises `ApiError` 400.
    """
    for name in ECHOED_FIELDS:
        if _exceeds_size(body.get(name), MAX_ECHOED_BYTES):
            message = f"Invalid '{name}': it has more than {MAX_ECHOED_BYTES >> 20} MiB as JSON. Send less of it."
            raise invalid_value(name, message)


def _exceeds_size(value: Any, limit: int) -> bool:
    """Tells whether a value has more than `limit` bytes as JSON. Containers are not encoded in one call."""
    values, size = [value], 0
    while values and size <= limit:
        part = values.pop()
        size += 1  # the comma
        if isinstance(part, dict):
            values += part
            values += part.values()
        elif isinstance(part, list):
            values += part
        elif isinstance(part, str) and len(part) > limit:
            return True
        else:
            size += len(msgspec.json.encode(part))
    return size > limit


def invalid_json(why: str) -> ApiError:
    """Returns the error for a body that is no JSON object."""
    return ApiError(400, "invalid_json", f"We could not parse the JSON body of your request: {clip_text(why)}.")


def nesting_error() -> ApiError:
    """Returns the error for a body with too many levels."""
    return invalid_json(f"it is nested more than {MAX_BODY_DEPTH} levels deep")
