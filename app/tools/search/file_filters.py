"""The filters of `file_search`: comparisons of a file's attributes, joined by "and" and "or"."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

Attributes = Mapping[str, str | int]
FileFilter = Callable[[Attributes], bool]

_MAX_DEPTH = 8
_MAX_COMPARISONS = 256
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def parse_filter(value: Any) -> FileFilter:
    """Returns a function that tells whether a file fits. None fits every file. Raises `ValueError` on other shapes."""
    if value is None:
        return lambda _: True
    return _FilterParser().parse(value, _MAX_DEPTH)


class _FilterParser:
    def __init__(self) -> None:
        self._num_left = _MAX_COMPARISONS

    def parse(self, value: Any, depth: int) -> FileFilter:
        kind = value.get("type") if isinstance(value, Mapping) else None
        if kind in ("and", "or"):
            return self._parse_compound(value, kind, depth)
        self._num_left -= 1
        if self._num_left < 0:
            raise ValueError(f"filters have more than {_MAX_COMPARISONS} comparisons. Use fewer.")
        if kind in ("eq", "ne", "in", "nin", *_ORDERS) and isinstance(value.get("key"), str) and "value" in value:
            return _parse_comparison(kind, value["key"], value["value"])
        raise ValueError(
            "filters must be a comparison {type: eq, ne, gt, gte, lt, lte, in or nin; key; value}, or a compound"
            " {type: and or or; filters}."
        )

    def _parse_compound(self, value: Any, kind: str, depth: int) -> FileFilter:
        if depth == 0:
            raise ValueError(f"filters are nested more than {_MAX_DEPTH} deep. Use fewer levels.")
        parts = [self.parse(part, depth - 1) for part in _check_list(value.get("filters"), f"'{kind}' in filters")]
        join = all if kind == "and" else any
        return lambda attributes: join(part(attributes) for part in parts)


def _parse_comparison(kind: str, key: str, value: Any) -> FileFilter:
    if kind in ("in", "nin"):
        values = _check_list(value, f"'{kind}' in filters")
        return lambda attributes: any(_is_equal(attributes.get(key), each) for each in values) == (kind == "in")
    if kind in ("eq", "ne"):
        return lambda attributes: _is_equal(attributes.get(key), value) == (kind == "eq")
    compare = _ORDERS[kind]
    return lambda attributes: _have_order(attributes.get(key), value) and compare(attributes[key], value)


def _check_list(value: Any, name: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise ValueError(f"{name} needs a list.")


def _is_equal(one: Any, other: Any) -> bool:
    return isinstance(one, str) == isinstance(other, str) and not isinstance(other, bool) and bool(one == other)


def _have_order(one: Any, other: Any) -> bool:
    """Tells whether both are numbers or both are texts."""
    return (isinstance(one, str) and isinstance(other, str)) or (
        isinstance(one, int) and isinstance(other, int | float) and not isinstance(other, bool)
    )
