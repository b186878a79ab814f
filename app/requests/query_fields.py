"""Fields of a query string: single values, flags, integers, times. A value that a field does not have is a 400."""

import re
from collections.abc import Mapping

from litestar.datastructures import MultiDict

from antiphon.app.base.errors import clip_text, invalid_type, invalid_value

LIST_FIELDS = frozenset({"include", "include[]", "ids", "ids[]"})
"""Fields that may be sent more than once."""
FLAGS = {"true": True, "1": True, "false": False, "0": False}
"""Texts of flags, in lower case: libraries write `true`, `True` and `1`."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_TIME = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,18})?")


def take_fields(query: MultiDict[str]) -> dict[str, str]:
    """Returns the fields that have one value. Raises `ApiError` 400 for one that is sent more than once."""
    fields: dict[str, str] = {}
    for name, value in query.multi_items():
        if name in fields:
            raise invalid_value(clip_text(name), f"Invalid '{clip_text(name)}': it is sent more than once.")
        if name not in LIST_FIELDS:
            fields[name] = value
    return fields


def read_flag(query: Mapping[str, str], name: str) -> bool:
    """Returns a field that is true or false; false if it is missing. Raises `ApiError` 400."""
    sent = query.get(name, "false").lower()
    if sent not in FLAGS:
        raise invalid_value(name, f"Invalid '{name}': it must be true or false.")
    return FLAGS[sent]


def parse_integer(sent: str, name: str) -> int:
    """Returns the integer that was sent. Raises `ApiError` 400 that names the field."""
    if not _INTEGER.fullmatch(sent):
        raise invalid_type(name, "an integer", sent)
    return int(sent)


def read_integer(query: Mapping[str, str], name: str, default: int, minimum: int, maximum: int) -> int:
    """Returns a field, or the default if it is missing. Raises `ApiError` 400."""
    number = parse_integer(query[name], name) if name in query else default
    if not minimum <= number <= maximum and name in query:
        raise invalid_value(name, f"Invalid '{name}': it must be between {minimum} and {maximum}.")
    return number


def read_time(query: Mapping[str, str], name: str, default: float) -> float:
    """Returns a time in seconds since 1970; the default if it is missing or empty. Raises `ApiError` 400."""
    sent = query.get(name, "")
    if not sent:
        return default
    if not _TIME.fullmatch(sent):
        raise invalid_type(name, "a time in seconds since 1970", sent)
    return float(sent)
