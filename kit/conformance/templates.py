"""Texts of a case that refer to values of earlier steps.

`{model}` is the model's name, `{mcp_label}` the label of an MCP server that the server knows. `{marker}` names case and
step, `{long_text}` is a text that no context holds, `{step1.id}` is the value at a path of the reply to step 1. A text
that is one template becomes the value, whatever its type; a text `{*step1.output}` in a list becomes the entries of the
value.
"""

import re
from collections.abc import Mapping
from typing import Any

from antiphon.kit.checker.items import CALL_TYPES
from antiphon.kit.json_values import as_objects, as_text

_TEMPLATE = re.compile(r"\{(\*?)((?:step\d+|model|mcp_label|marker|long_text)(?:\.\w+)*)\}")


class MissingValueError(LookupError):
    """Raised if an earlier reply lacks a value that a step refers to."""


def fill_templates(value: Any, scope: Mapping[str, Any]) -> Any:
    """Returns a JSON value with its templates replaced. Raises `MissingValueError`."""
    if isinstance(value, str):
        if (whole := _TEMPLATE.fullmatch(value)) and not whole[1]:
            return find_value(scope, whole[2])
        return _TEMPLATE.sub(lambda match: str(find_value(scope, match[2])), value)
    if isinstance(value, dict):
        return {key: fill_templates(entry, scope) for key, entry in value.items()}
    if isinstance(value, list):
        return [filled for entry in value for filled in _fill_entry(entry, scope)]
    return value


def find_value(scope: Any, path: str) -> Any:
    """Returns the value at a dotted path of objects and lists. Raises `MissingValueError`."""
    value = scope
    for key in path.split("."):
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (LookupError, TypeError, ValueError):
            raise MissingValueError(path) from None
    return value


def list_calls(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the calls in the output of a response."""
    return [item for item in as_objects(response.get("output")) if item.get("type") in CALL_TYPES]


def join_text(response: Mapping[str, Any]) -> str:
    """Returns the text of all messages of a response."""
    return "".join(
        as_text(part.get("text"))
        for item in as_objects(response.get("output"))
        if item.get("type") == "message"
        for part in as_objects(item.get("content"))
    )


def step_scope(reply: Mapping[str, Any], marker: str) -> dict[str, Any]:
    """Returns what later steps may refer to: the reply, its `calls`, their outputs, its `approvals` and its `text`."""
    calls = list_calls(reply)
    outputs = [
        {
            "type": f"{call['type']}_output",
            "call_id": call.get("call_id"),
            "output": f"Done: 4 degrees and rain in city {number}. {marker}",
        }
        for number, call in enumerate(calls, 1)
    ]
    approvals = [item for item in as_objects(reply.get("output")) if item.get("type") == "mcp_approval_request"]
    return {**reply, "calls": calls, "approvals": approvals, "call_outputs": outputs, "text": join_text(reply)}


def _fill_entry(entry: Any, scope: Mapping[str, Any]) -> list[Any]:
    splice = _TEMPLATE.fullmatch(entry) if isinstance(entry, str) else None
    if splice is None or not splice[1]:
        return [fill_templates(entry, scope)]
    values = find_value(scope, splice[2])
    if not isinstance(values, list):
        raise MissingValueError(splice[2])
    return values
