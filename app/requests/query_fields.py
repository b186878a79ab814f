"""Queries: structs like bodies, whose fields are texts, flags, integers, times, lists or pairs.

A field that a query does not have is a 400, as in bodies, and so is a value that a field does not have.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct, structs

from antiphon.app.errors import ApiError, clip_text, invalid_type, invalid_value, unknown_field, unsupported_field
from antiphon.app.requests.fields.annotations import Check, list_values, split_annotated
from antiphon.app.requests.fields.checks import build_check

FLAGS = {"true": True, "1": True, "false": False, "0": False}
"""Texts of flags, in lower case: libraries write `true`, `True` and `1`."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_TIME = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,18})?")
_NAME_WITH_KEY = re.compile(r"(\w+)\[(.*)\]", re.DOTALL)
_LIST_INDEX = re.compile(r"[0-9]{0,3}")


class Query(Struct, frozen=True, kw_only=True):
    """Fields of a query. `tuple` is a list, sent as `name`, `name[]` or `name[0]`; `dict` has pairs, `name[key]=value`.

    A `float` is a time in seconds since 1970.
    """

    refused: ClassVar[dict[str, str]] = {}
    """Fields of the API that this server does not have, and why."""
    ignores_others: ClassVar[bool] = False
    omits_empty: ClassVar[bool] = False
    """An empty text means the default of its field, unless that is an integer or a flag."""


class NoQuery(Query, frozen=True):
    """No fields."""


class AnyQuery(Query, frozen=True):
    """Any fields, which are ignored: probes and caches add some."""

    ignores_others = True


class BetaQuery(Query, frozen=True, kw_only=True):
    """The field that Anthropic's client sends with its beta methods."""

    beta: str | None = None
    """Changes nothing."""


AnyQueryFields = TypeVar("AnyQueryFields", bound=Query)


class _QueryField(Struct, frozen=True):
    kind: Any
    """`bool`, `int`, `float`, `tuple`, `dict`, or anything else for a text."""
    check: Check
    default: Any

    def takes_key(self, key: str | None) -> bool:
        """Tells whether the name of the field may have a key behind it."""
        return key is None or self.kind is dict or (self.kind is tuple and _LIST_INDEX.fullmatch(key) is not None)

    def add_value(self, values: dict[str, Any], name: str, key: str | None, text: str, *, omits_empty: bool) -> None:
        """Adds a value that was sent to those of the query. Raises `ApiError` 400."""
        if self.kind is tuple:
            self.check(text, name)
            values[name] = (*values.get(name, ()), text)
        elif self.kind is dict:
            if key is None:
                raise invalid_value(name, f"Invalid '{name}': send each pair as '{name}[key]=value'.")
            if key in values.setdefault(name, {}):
                raise _sent_twice(f"{name}[{key}]")
            values[name][key] = text
        elif name in values:
            raise _sent_twice(name)
        else:
            is_omitted = omits_empty and not text and self.kind not in (int, bool)
            values[name] = self.default if is_omitted else _read_value(self, text, name)


def decode_query(kind: type[AnyQueryFields], pairs: Iterable[tuple[str, str]]) -> AnyQueryFields:
    """Returns the fields that were sent. Raises `ApiError` 400 for an unknown field, or one that is sent twice."""
    fields, values = _list_fields(kind), dict[str, Any]()
    for written, text in pairs:
        with_key = _NAME_WITH_KEY.fullmatch(written)
        name, key = (with_key[1], with_key[2]) if with_key else (written, None)
        if name in kind.refused:
            raise unsupported_field(name, kind.refused[name])
        field = fields.get(name)
        if field is not None and field.takes_key(key):
            field.add_value(values, name, key, text, omits_empty=kind.omits_empty)
        elif not kind.ignores_others:
            raise unknown_field(written)
    for name, field in fields.items():
        if field.kind is dict and name in values:
            field.check(values[name], name)
    return kind(**values)


@cache
def _list_fields(kind: type[Query]) -> dict[str, _QueryField]:
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for field in structs.fields(kind):
        [annotation] = list_values(hints[field.name])
        inner, _ = split_annotated(annotation)
        form = get_origin(inner) or inner
        checked = get_args(inner)[0] if form is tuple else annotation
        found[field.name] = _QueryField(form, build_check(checked), field.default)
    return found


def _read_value(field: _QueryField, text: str, name: str) -> Any:
    """Returns the value of a text. Raises `ApiError` 400."""
    if field.kind is bool:
        return _read_flag(text, name)
    if field.kind is float:
        return _read_time(text, name)
    value = parse_integer(text, name) if field.kind is int else text
    field.check(value, name)
    return value


def _sent_twice(name: str) -> ApiError:
    return invalid_value(clip_text(name), f"Invalid '{clip_text(name)}': it is sent more than once.")


def _read_flag(sent: str, name: str) -> bool:
    """Returns a flag. Raises `ApiError` 400."""
    if sent.lower() not in FLAGS:
        raise invalid_value(name, f"Invalid '{name}': it must be true or false.")
    return FLAGS[sent.lower()]


def parse_integer(sent: str, name: str) -> int:
    """Returns the integer that was sent. Raises `ApiError` 400 that names the field."""
    if not _INTEGER.fullmatch(sent):
        raise invalid_type(name, "an integer", sent)
    return int(sent)


def _read_time(sent: str, name: str) -> float:
    if not _TIME.fullmatch(sent):
        raise invalid_type(name, "a time in seconds since 1970", sent)
    return float(sent)
