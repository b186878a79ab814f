"""Reads type annotations of request bodies: their metadata, unions, and the structs in them."""

import types
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct, UnsetType

Check = Callable[[Any, str], None]
"""Takes a value and its path. Raises `ApiError` 400."""


class Checked(Struct, frozen=True):
    """Metadata of an annotation: finds the faults of a value that its type does not express."""

    check: Check


def split_annotated(annotation: Any) -> tuple[Any, list[Any]]:
    """Returns a type without `Annotated`, and its metadata."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    inner, *metadata = get_args(annotation)
    return inner, metadata


def list_values(annotation: Any) -> list[Any]:
    """Returns the members of a union besides null, or the type itself."""
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [member for member in members if member not in (type(None), UnsetType)]


def is_struct(annotation: Any) -> bool:
    """Tells whether a type is a struct."""
    return isinstance(annotation, type) and issubclass(annotation, Struct)


def find_check(annotation: Any) -> Check | None:
    """Returns the check besides its type of a value that may be null; None if there is none."""
    inner, metadata = split_annotated(annotation)
    members = list_values(inner)
    if len(members) == 1 and members[0] is not inner:
        return find_check(members[0])
    return next((entry.check for entry in metadata if isinstance(entry, Checked)), None)


def drop_unknown_nulls(value: Any, annotation: Any) -> Any:
    """Returns a value without the null keys that its structs do not have. Other objects, as schemas, keep theirs."""
    annotation = split_annotated(annotation)[0]
    members = [split_annotated(member)[0] for member in list_values(annotation)]
    if isinstance(value, list):
        entries = [get_args(member)[0] for member in members if get_origin(member) in (list, tuple)]
        return [drop_unknown_nulls(entry, entries[0]) for entry in value] if entries else value
    if len(members) == 1 and members[0] is not annotation:
        return drop_unknown_nulls(value, members[0])
    kinds = [member for member in members if is_struct(member)]
    if not kinds or not isinstance(value, dict):
        return value
    config = kinds[0].__struct_config__
    kind = next((kind for kind in kinds if kind.__struct_config__.tag == value.get(str(config.tag_field))), kinds[0])
    hints = get_type_hints(kind, include_extras=True)
    return {
        key: drop_unknown_nulls(entry, hints[key]) if key in hints else entry
        for key, entry in value.items()
        if key in hints or entry is not None
    }
