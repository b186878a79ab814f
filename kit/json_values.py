"""Values of decoded JSON, which may have any shape: their types, and readers that take what is there."""

import json
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
JsonEvent = Mapping[str, Any]
JsonItem = Mapping[str, Any]
JsonResponse = Mapping[str, Any]


def as_list(value: object) -> list[Any]:
    """Returns the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_objects(value: object) -> list[dict[str, Any]]:
    """Returns the objects in a list, an empty list if the value is none."""
    return [entry for entry in as_list(value) if isinstance(entry, dict)]


def as_table(value: object) -> dict[str, Any]:
    """Returns the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str:
    """Returns the value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def decode_object(text: str | bytes) -> dict[str, Any] | None:
    """Returns the JSON object in a text; None if it holds none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
