"""JSON that the model writes: texts in a JSON format, and the arguments of calls, against their schemas.

Schemas are checked by the package jsonschema where it is installed: the extras `kit` and `pytest` bring it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import JsonItem, as_list, as_objects, as_text

JSON_FORMATS = ("json_object", "json_schema")
MAX_SHOWN_JSON_CHARS = 200


def check_text_format(text: object, output: Sequence[JsonItem], findings: FindingList) -> None:
    """Checks the texts of a completed response against `text`, the setting of the request."""
    form = text.get("format") if isinstance(text, dict) else None
    if isinstance(form, dict):
        for label, content in _list_texts(output):
            check_json_text(content, as_text(form.get("type")), form, label, findings)


def check_json_text(content: str, kind: str, form: Mapping[str, Any], label: str, findings: FindingList) -> None:
    """Checks a whole text in the format `kind`. `form` has the schema and `strict` of a json_schema."""
    if kind not in JSON_FORMATS:
        return
    try:
        value = json.loads(content)
    except ValueError:
        findings.add("text-not-json", f"JSON, as the format {kind} asks", quote(content), label)
        return
    if kind == "json_object" and not isinstance(value, dict):
        findings.add("text-not-json", "a JSON object, as the format json_object asks", quote(content), label)
    elif kind == "json_schema":
        _check_schema(value, form, "text-schema", label, findings)


def check_arguments(arguments: object, tool: Mapping[str, Any] | None, label: str, findings: FindingList) -> None:
    """Checks the arguments of a completed function call. `tool` is None if it is unknown."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else None
    except ValueError:
        findings.add("arguments-not-json", "a JSON object", quote(arguments), label)
        return
    if not isinstance(value, dict):
        findings.add("arguments-not-object", "a JSON object", quote(arguments), label)
    elif tool is not None:
        form = {"schema": tool.get("parameters"), "strict": tool.get("strict")}
        _check_schema(value, form, "arguments-schema", label, findings)


def _check_schema(value: Any, form: Mapping[str, Any], code: str, label: str, findings: FindingList) -> None:
    """Checks a value against `form["schema"]`. A schema that is not strict is a wish: its code is another one."""
    schema = form.get("schema")
    if not isinstance(schema, dict) or not schema:
        return
    code = code if form.get("strict") is True else f"{code}-not-strict"
    try:
        fault = find_schema_fault(value, schema)
    except SchemaSupportError:
        findings.add("schema-unchecked", "the package jsonschema: pip install 'antiphon[kit]'", "none")
        return
    if fault is not None:
        findings.add(code, f"what the schema asks: {fault}", quote(value), label)


def _list_texts(output: Sequence[JsonItem]) -> Iterator[tuple[str, str]]:
    """Yields the id and each text of the answers. Messages of the phase commentary are none."""
    for item in output:
        if item.get("type") != "message" or item.get("phase") == "commentary":
            continue
        for part in as_objects(as_list(item.get("content"))):
            if part.get("type") == "output_text":
                yield str(item.get("id")), as_text(part.get("text"))


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
    return quote(error.message, MAX_SHOWN_JSON_CHARS) + place
