"""JSON Schemas of request bodies and replies, from their structs. Fields are described by the docstrings below them."""

import ast
import inspect
import math
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any, get_type_hints

import msgspec

from antiphon.app.requests.fields import RequestBody, list_fields
from antiphon.app.requests.fields.annotations import list_values
from antiphon.app.requests.query_fields import Query

Json = dict[str, Any]
REF_TEMPLATE = "#/components/schemas/{name}"
NULL: Json = {"type": "null"}


@cache
def describe_fields(kind: type[RequestBody]) -> dict[str, str]:
    """Returns the description of each field of a body, by name."""
    texts: dict[str, str] = {}
    for source in reversed((kind.described_in or kind).__mro__):
        if issubclass(source, RequestBody):
            texts |= _read_docstrings(source)
    return {field.name: field.rule.description or texts[field.name] for field in list_fields(kind)}


def is_required(description: str) -> bool:
    """Tells whether a body without the field is always rejected. Its description then begins with that."""
    return description.startswith("Required.")


def body_schema(kind: type[RequestBody]) -> Json:
    """Returns the schema of a body. Null counts as leaving a field out; an unknown key may only be null."""
    _, components = msgspec.json.schema_components([kind], ref_template="{name}")
    schema = _resolve(components[kind.__name__], components)
    descriptions, properties = describe_fields(kind), schema["properties"]
    for field in list_fields(kind):
        description = descriptions[field.name]
        values = NULL if field.rule.handling == "refused" else properties[field.name]
        if is_required(description):
            values = _without_null(values)
        deprecated = {"deprecated": True} if description.startswith("Deprecated") else {}
        labels = {"description": description, "x-handling": field.rule.handling}
        properties[field.name] = values | labels | deprecated
    required = sorted(name for name, description in descriptions.items() if is_required(description))
    body: Json = {"type": "object", "properties": dict(sorted(properties.items())), "additionalProperties": NULL}
    return body | ({"required": required} if required else {})


def query_parameters(kind: type[Query]) -> list[Json]:
    """Returns the parameters of a query in the order of its fields."""
    texts: dict[str, str] = {}
    for source in reversed(kind.__mro__):
        if issubclass(source, Query):
            texts |= _read_docstrings(source)
    hints, found = get_type_hints(kind, include_extras=True), list[Json]()
    for field in msgspec.structs.fields(kind):
        [annotation] = list_values(hints[field.name])
        values = msgspec.json.schema(annotation)
        if field.default not in (None, "", (), msgspec.NODEFAULT, math.inf, -math.inf):
            values["default"] = field.default
        labels: Json = {"required": True} if is_required(texts.get(field.name, "")) else {}
        if field.name in texts:
            labels["description"] = texts[field.name]
        if values.get("type") == "object":
            labels["style"] = "deepObject"
        found.append({"name": field.name, "in": "query", "schema": values} | labels)
    return found


def reply_schemas(types: Iterable[type]) -> Json:
    """Returns the schemas of these structs and of all structs inside them, by name, with one-paragraph descriptions."""
    _, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    for schema in components.values():
        if "description" in schema:
            schema["description"] = " ".join(schema["description"].partition("\n\n")[0].split())
    return components


def _read_docstrings(kind: type) -> dict[str, str]:
    """Returns the docstrings below the fields of a class."""
    (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
    statements = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(statements)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _resolve(schema: Any, components: Json) -> Any:
    """Returns a schema with references replaced, and without what only decoders of Python need."""
    if isinstance(schema, list):
        return [_resolve(entry, components) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolve(components[schema["$ref"]], components)
    result = {
        key: _resolve(value, components)
        for key, value in schema.items()
        if key not in ("default", "discriminator", "title") or (isinstance(value, dict) and "type" in value)
    }
    if "pattern" in result and isinstance(result["pattern"], str):
        result["pattern"] = result["pattern"].replace(r"\Z", "$")
    if result.get("additionalProperties") is False:
        result["additionalProperties"] = NULL
    return result


def _without_null(schema: Json) -> Json:
    members = [member for member in schema["anyOf"] if member != NULL]
    return members[0] if len(members) == 1 else {"anyOf": members}
