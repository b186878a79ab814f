"""JSON Schemas of request bodies and replies: of bodies from the tables of fields, of replies from their structs.

A validator that carries no schema is asked which JSON types it accepts. So the schemas say no more than the decoder
knows; the descriptions of the fields say the rest.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from antiphon.app.base.errors import ApiError
from antiphon.app.requests.fields import RequestField
from antiphon.app.requests.validators import Validator, nullable, read_schema

Json = dict[str, Any]
REF_TEMPLATE = "#/components/schemas/{name}"
SAMPLE_VALUES: dict[str, Any] = {
    "boolean": True,
    "integer": 1,
    "number": 1.5,
    "string": "x",
    "array": [],
    "object": {},
}
"""A value of each JSON type except null."""


def body_schema(table: Iterable[RequestField]) -> Json:
    """Returns the schema of a body with these fields and no others. Null counts as leaving a field out."""
    fields = sorted(table, key=lambda field: field.name)
    schema: Json = {
        "type": "object",
        "properties": {field.name: field_schema(field) for field in fields},
        "additionalProperties": {"type": "null"},
    }
    required = [field.name for field in fields if is_required(field)]
    return schema | ({"required": required} if required else {})


def is_required(field: RequestField) -> bool:
    """Tells whether a body without the field is always rejected. Its description then begins with that."""
    return field.description.startswith("Required.")


def field_schema(field: RequestField) -> Json:
    """Returns the schema of a field, with its description and handling. A refused field can only be null."""
    schema = read_schema(field.check)
    if field.handling == "refused":
        schema = {"type": "null"}
    else:
        schema = probe_types(field.check) if schema is None else schema
        schema = schema if is_required(field) else nullable(schema)
    deprecated = {"deprecated": True} if field.description.startswith("Deprecated") else {}
    return schema | {"description": field.description, "x-handling": field.handling} | deprecated


def probe_types(check: Validator) -> Json:
    """Returns the schema of the JSON types that a validator does not reject as such."""
    types = [name for name, value in SAMPLE_VALUES.items() if not _rejects_type(check, value)]
    if "number" in types:
        types.remove("integer")  # it is a number, too
    if len(types) == len(SAMPLE_VALUES) - 1:
        return {}
    return {"type": types[0]} if len(types) == 1 else {"type": types}


def _rejects_type(check: Validator, value: Any) -> bool:
    try:
        check(value, "field")
    except ApiError as error:
        return error.code == "invalid_type" and error.param == "field"
    return False


def reply_schemas(types: Iterable[type]) -> Json:
    """Returns the schemas of these structs and of all structs inside them, by name, with one-paragraph descriptions."""
    _, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    for schema in components.values():
        if "description" in schema:
            schema["description"] = " ".join(schema["description"].partition("\n\n")[0].split())
    return components
