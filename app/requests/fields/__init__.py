"""Request bodies as types: each endpoint has one struct, and the annotation of a field says all about it.

From these structs come the decoder of bodies, path and text of an error, docs/reference/fields.md and the OpenAPI
document. No field is dropped silently. A field is *honoured* (changes what is generated or how it is returned),
*echoed* (the reply returns it, no other effect), *accepted* (a hint that cannot change the reply here) or *refused*
(400 `unsupported_parameter`). Null always means the same as leaving a field out.

The docstring below a field is its description for clients. A field that several structs share has its description in
the annotation.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import Struct

from antiphon.app.errors import clip_text, invalid_value, unsupported_field
from antiphon.app.requests.fields.annotations import drop_unknown_nulls, find_check
from antiphon.app.requests.fields.checks import build_check

Handling = Literal["honoured", "echoed", "accepted", "refused"]
NOT_SUPPORTED = "This server does not support this value."


class RequestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON body of a request. A field is None if it was left out or sent as null."""

    described_in: ClassVar[type[Struct] | None] = None
    """Body with the same fields, whose docstrings describe these; None: they have their own."""


class FieldRule(Struct, frozen=True):
    """Metadata of a field's annotation, besides its type."""

    handling: Handling
    description: str = ""
    """Description for clients; empty if the field has a docstring."""


T = TypeVar("T")
Honoured = Annotated[T | None, FieldRule("honoured")]
Echoed = Annotated[T | None, FieldRule("echoed")]
Accepted = Annotated[T | None, FieldRule("accepted")]


def refused(description: str) -> FieldRule:
    """Returns the rule of a field that is recognized but always refused. The error says why."""
    return FieldRule("refused", description)


class RequestField(Struct, frozen=True):
    """A field of a request's body, as its struct declares it."""

    name: str
    rule: FieldRule
    annotation: Any


AnyBody = TypeVar("AnyBody", bound=RequestBody)


@cache
def list_fields(kind: type[RequestBody]) -> tuple[RequestField, ...]:
    """Returns the fields of a body in the order of their declaration."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        RequestField(
            name, next(entry for entry in hints[name].__metadata__ if isinstance(entry, FieldRule)), hints[name]
        )
        for name in kind.__struct_fields__
    )


def decode_value(value: Any, kind: type[T], path: str) -> T:
    """Returns a JSON value as a struct. `path` is its path. Raises `ApiError` 400 for its first fault."""
    annotation: Any = kind
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        build_check(annotation)(value, path)
    try:  # its only faults are unknown keys with null
        return msgspec.convert(drop_unknown_nulls(value, annotation), kind)
    except msgspec.ValidationError as error:
        raise invalid_value(path, f"Invalid '{path}': {clip_text(str(error))}.") from None


def decode_body(kind: type[AnyBody], body: Mapping[str, Any]) -> AnyBody:
    """Returns the body as a struct. Raises `ApiError` 400 for the first fault: unknown keys before malformed values.

    Call `refuse_unsupported` after all other checks, so that malformed values are reported first.
    """
    decoded = decode_value(body, kind, "")
    for name, check in _list_checks(kind):
        value = getattr(decoded, name)
        if value is not None:
            check(value, name)
    return decoded


def refuse_unsupported(body: RequestBody) -> None:
    """Raises `ApiError` 400 for the first field that is refused."""
    for field in _list_refused(type(body)):
        if getattr(body, field.name) is not None:
            raise unsupported_field(field.name, field.rule.description)


@cache
def _list_checks(kind: type[RequestBody]) -> list[tuple[str, Any]]:
    checks = [(field.name, find_check(field.annotation)) for field in list_fields(kind)]
    return [(name, check) for name, check in checks if check is not None]


@cache
def _list_refused(kind: type[RequestBody]) -> list[RequestField]:
    return [field for field in list_fields(kind) if field.rule.handling == "refused"]
