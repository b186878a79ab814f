"""JSON Schema, by the package jsonschema where it is installed: the extras `kit` and `pytest` bring it."""

from collections.abc import Mapping
from typing import Any

from antiphon.kit.findings import quote

MAX_SHOWN_CHARS = 200


class SchemaSupportError(Exception):
    """Raised where no schema can be checked, because jsonschema is not installed."""


def find_schema_fault(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with a JSON value. None if it follows the schema, or if the schema is none itself.

    References to other documents are not followed. Raises `SchemaSupportError`.
    """
    try:
        import jsonschema  # noqa: PLC0415  a user of the kit may not have it, and it takes time to load
        from referencing.jsonschema import EMPTY_REGISTRY  # noqa: PLC0415
    except ImportError:
        raise SchemaSupportError from None
    try:
        default: Any = jsonschema.Draft202012Validator
        validator = jsonschema.validators.validator_for(schema, default=default)(schema, registry=EMPTY_REGISTRY)
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except Exception:  # noqa: BLE001  the schema is the client's own: its faults are not the stream's
        return None
    if error is None:
        return None
    place = "" if error.json_path == "$" else f" at {error.json_path}"
    return quote(error.message, MAX_SHOWN_CHARS) + place
