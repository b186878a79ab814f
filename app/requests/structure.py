"""Reads the form that a completion's text must have: `response_format`, `structured_outputs` and their older names."""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.app.errors import invalid_value
from antiphon.app.requests import constraints
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.completions.body import TextCompletionBody
from antiphon.app.requests.constraints import CheckedConstraint
from antiphon.app.requests.fields.common import JsonObjectFormat
from antiphon.app.requests.fields.vllm import JsonSchemaFormat, StructuredOutputs
from antiphon.harmony.grammar import OutputConstraint

STRUCTURES = StructuredOutputs.__struct_fields__
GUIDED_FIELDS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
"""Older names of the keys of `structured_outputs`."""


class RequestConstraint(Struct, frozen=True):
    """The constraint of a request on the text, and what is checked of it before the engine gets the job."""

    output_constraint: OutputConstraint | None = None
    param: str = ""
    """Path of the field that has the constraint."""
    constraints: tuple[CheckedConstraint, ...] = ()
    is_json: bool = False
    """True if the text must be JSON, which no stop string may cut."""


def read_constraint(body: ChatBody | TextCompletionBody) -> RequestConstraint:
    """Returns the constraint of the text. Raises `ApiError` 400 if two fields have one."""
    forms = [(path, kind, value) for path, kind, value in _list_forms(body) if value is not None and value is not False]
    if not forms:
        return RequestConstraint()
    if len(forms) > 1:
        names = " and ".join(f"'{path}'" for path, _, _ in forms[:2])
        raise invalid_value(forms[1][0], f"Only one form of the text can be required, but {names} are set.")
    path, kind, value = forms[0]
    match kind:
        case "json" | "json_object":
            schema = {"type": "object"} if kind == "json_object" else _read_schema(value, path)
            return RequestConstraint(
                OutputConstraint(schema=schema), path, (constraints.schema_constraint(schema, path),), is_json=True
            )
        case "regex":
            return RequestConstraint(OutputConstraint(regex=value), path, (CheckedConstraint("regex", value, path),))
        case "choice":
            if not value:
                raise invalid_value(path, f"Invalid '{path}': it must have at least one entry.")
            return RequestConstraint(OutputConstraint(choice=tuple(value)), path)
        case _:
            return RequestConstraint(OutputConstraint(lark=value), path, (CheckedConstraint("lark", value, path),))


def _list_forms(body: ChatBody | TextCompletionBody) -> list[tuple[str, str, Any]]:
    """Returns path, kind and value of every form that the request could have."""
    outputs, sent = body.structured_outputs, body.response_format
    forms = (
        [] if outputs is None else [(f"structured_outputs.{kind}", kind, getattr(outputs, kind)) for kind in STRUCTURES]
    )
    forms += [(name, name.removeprefix("guided_"), getattr(body, name)) for name in GUIDED_FIELDS]
    if isinstance(sent, JsonSchemaFormat):
        forms.append(("response_format.json_schema.schema", "json", sent.json_schema.schema))
    elif isinstance(sent, JsonObjectFormat):
        schema = sent.schema
        forms.append(("response_format.schema", "json", schema) if schema else ("response_format", "json_object", True))
    return forms


def _read_schema(value: Any, path: str) -> Mapping[str, Any]:
    """Returns a JSON Schema, which may be sent as text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise invalid_value(path, f"Invalid '{path}': it must be a JSON Schema, which is an object.")
    return value
