"""Finds integers of a JSON Schema that no grammar can hold.

llguidance reads all numbers as 64-bit floats, so that it would require another value, or compile without an end.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

_VALUE_KEYWORDS = frozenset({"enum", "const"})
_BOUND_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_UNREAD = frozenset({"default", "examples"})
_MANY_DIGITS = re.compile(r"\d{16}")
"""Smaller integers have fewer than 54 bits, which each float holds."""
MAX_QUOTED_INTEGER_CHARS = 40


def find_large_value(source: str) -> str:
    """Returns the fault of an integer in `enum` or `const` that no grammar can hold; empty if there is none.

    `source` is a schema as JSON.
    """
    found = _find_integer(source, _VALUE_KEYWORDS, _is_exact)
    return found and f"{found}, which a 64-bit float does not hold exactly. Use a string"


def find_large_bound(source: str) -> str:
    """Returns the fault of a bound that no grammar can hold; empty if there is none. `source` is a schema as JSON.

    Some of these bounds can be enforced all the same: call it for a schema that was refused.
    """
    found = _find_integer(source, _BOUND_KEYWORDS, _is_in_range)
    return found and f"{found}, which has more than 63 bits as a float. Use a smaller one, or leave it out"


def _is_in_range(value: int) -> bool:
    return abs(value) < 2**63 and abs(float(value)) < 2**63


def _is_exact(value: int) -> bool:
    return _is_in_range(value) and int(float(value)) == value


def _find_integer(source: str, keywords: frozenset[str], fits: Callable[[int], bool]) -> str:
    if not _MANY_DIGITS.search(source):
        return ""
    for path, value in _list_integers(json.loads(source), keywords):
        if not fits(value):
            digits = str(value)
            shown = digits if len(digits) <= MAX_QUOTED_INTEGER_CHARS else f"{digits[:MAX_QUOTED_INTEGER_CHARS]}…"
            return f"no grammar can hold the integer {shown} at '{path}'"
    return ""


def _list_integers(schema: Any, keywords: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Yields the integers of these keywords with their paths, without recursion: a client nests schemas at will."""
    waiting: list[tuple[str, Any, bool]] = [("", schema, False)]  # and whether all integers of a value count
    while waiting:
        path, value, counts = waiting.pop()
        if isinstance(value, list):
            waiting += [(f"{path}[{index}]", each, counts) for index, each in reversed(list(enumerate(value)))]
        elif isinstance(value, dict):
            for key, each in reversed(value.items()):
                place = f"{path}.{key}" if path else key
                if not counts and key in _SCHEMAS_BY_NAME and isinstance(each, dict):
                    waiting += [(f"{place}.{name}", below, False) for name, below in reversed(each.items())]
                elif counts or key not in _UNREAD | (_VALUE_KEYWORDS | _BOUND_KEYWORDS) - keywords:
                    waiting.append((place, each, counts or key in keywords))
        elif counts and isinstance(value, int) and not isinstance(value, bool):
            yield path, value
