"""Fields that events, items, parts and responses must have, and their types.

Source: the Responses API reference, the types of the openai SDK 3.52, and Open Responses.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.kit.findings import FindingList, quote

Types = tuple[type | None, ...]
Shape = Mapping[str, Types]

STRING: Types = (str,)
INTEGER: Types = (int,)
NUMBER: Types = (int, float)
OBJECT: Types = (dict,)
ARRAY: Types = (list,)
BOOLEAN: Types = (bool,)
ANY: Types = ()

ITEM = {"item_id": STRING, "output_index": INTEGER}
PART = ITEM | {"content_index": INTEGER}
SUMMARY = ITEM | {"summary_index": INTEGER}
LIFECYCLE = {"response": OBJECT}
COMMAND = {"output_index": INTEGER, "command_index": INTEGER}

LIFECYCLE_TYPES = ("created", "queued", "in_progress", "completed", "incomplete", "failed")
PROGRESS_TYPES = {
    "code_interpreter_call": "in_progress interpreting completed",
    "compaction": "compacting",
    "file_search_call": "in_progress searching completed",
    "web_search_call": "in_progress searching completed",
    "image_generation_call": "in_progress generating completed",
    "mcp_call": "in_progress completed failed",
    "mcp_list_tools": "in_progress completed failed",
}
"""Events about the progress of an item, by its kind."""

EVENT_SHAPES: dict[str, Shape] = {
    **{f"response.{name}": LIFECYCLE for name in LIFECYCLE_TYPES},
    **{f"response.{kind}.{step}": ITEM for kind, steps in PROGRESS_TYPES.items() for step in steps.split()},
    "error": {"message": STRING},
    "response.output_item.added": {"output_index": INTEGER, "item": OBJECT},
    "response.output_item.done": {"output_index": INTEGER, "item": OBJECT},
    "response.content_part.added": PART | {"part": OBJECT},
    "response.content_part.done": PART | {"part": OBJECT},
    "response.output_text.delta": PART | {"delta": STRING, "logprobs": ARRAY},
    "response.output_text.done": PART | {"text": STRING, "logprobs": ARRAY},
    "response.output_text.annotation.added": PART | {"annotation_index": INTEGER, "annotation": OBJECT},
    "response.refusal.delta": PART | {"delta": STRING},
    "response.refusal.done": PART | {"refusal": STRING},
    "response.reasoning_text.delta": PART | {"delta": STRING},
    "response.reasoning_text.done": PART | {"text": STRING},
    "response.reasoning_summary_part.added": SUMMARY | {"part": OBJECT},
    "response.reasoning_summary_part.done": SUMMARY | {"part": OBJECT},
    "response.reasoning_summary_text.delta": SUMMARY | {"delta": STRING},
    "response.reasoning_summary_text.done": SUMMARY | {"text": STRING},
    "response.function_call_arguments.delta": ITEM | {"delta": STRING},
    "response.function_call_arguments.done": ITEM | {"arguments": STRING},
    "response.custom_tool_call_input.delta": ITEM | {"delta": STRING},
    "response.custom_tool_call_input.done": ITEM | {"input": STRING},
    "response.mcp_call_arguments.delta": ITEM | {"delta": STRING},
    "response.mcp_call_arguments.done": ITEM | {"arguments": STRING},
    "response.code_interpreter_call_code.delta": ITEM | {"delta": STRING},
    "response.code_interpreter_call_code.done": ITEM | {"code": STRING},
    "response.image_generation_call.partial_image": ITEM
    | {"partial_image_b64": STRING, "partial_image_index": INTEGER},
    "response.shell_call_command.added": COMMAND | {"command": STRING},
    "response.shell_call_command.delta": COMMAND | {"delta": STRING},
    "response.shell_call_command.done": COMMAND | {"command": STRING},
    "response.shell_call_output_content.delta": ITEM | {"command_index": INTEGER, "delta": ANY},
    "response.shell_call_output_content.done": ITEM | {"command_index": INTEGER, "output": ANY},
    "response.audio.delta": {"delta": STRING},
    "response.audio.done": {},
    "response.audio.transcript.delta": {"delta": STRING},
    "response.audio.transcript.done": {},
}
"""Fields of each event besides `type` and `sequence_number`. An event that is not here makes Node's helper throw."""

OPEN_RESPONSES_NAMES = {
    "response.reasoning.delta": "response.reasoning_text.delta",
    "response.reasoning.done": "response.reasoning_text.done",
}
"""Event types of the Open Responses specification that OpenAI's API spells otherwise."""

ITEM_SHAPES: dict[str, Shape] = {
    "message": {"role": STRING, "status": STRING, "content": ARRAY},
    "reasoning": {"summary": ARRAY},
    "function_call": {"call_id": STRING, "name": STRING, "arguments": STRING},
    "custom_tool_call": {"call_id": STRING, "name": STRING, "input": STRING},
    "function_call_output": {"output": (str, list)},
    "custom_tool_call_output": {"output": (str, list)},
    "file_search_call": {"queries": ARRAY, "status": STRING},
    "web_search_call": {"status": STRING},
    "computer_call": {"call_id": STRING, "status": STRING},
    "computer_call_output": {"call_id": STRING, "output": OBJECT},
    "code_interpreter_call": {"container_id": STRING, "status": STRING},
    "image_generation_call": {"status": STRING},
    "local_shell_call": {"call_id": STRING, "action": OBJECT, "status": STRING},
    "local_shell_call_output": {"output": STRING},
    "shell_call": {"call_id": STRING, "action": OBJECT, "status": STRING},
    "shell_call_output": {"call_id": STRING, "output": ARRAY},
    "apply_patch_call": {"call_id": STRING, "operation": OBJECT, "status": STRING},
    "apply_patch_call_output": {"call_id": STRING, "status": STRING},
    "mcp_call": {"server_label": STRING, "name": STRING, "arguments": STRING},
    "mcp_list_tools": {"server_label": STRING, "tools": ARRAY},
    "mcp_approval_request": {"server_label": STRING, "name": STRING, "arguments": STRING},
    "mcp_approval_response": {"approval_request_id": STRING, "approve": BOOLEAN},
    "tool_search_call": {"status": STRING},
    "tool_search_output": {"tools": ARRAY, "status": STRING},
    "additional_tools": {"role": STRING, "tools": ARRAY},
    "program": {},
    "program_output": {},
    "compaction": {"encrypted_content": STRING},
}
"""Fields of each kind of output item besides `type` and `id`."""

PART_SHAPES: dict[str, Shape] = {
    "output_text": {"text": STRING, "annotations": ARRAY},
    "refusal": {"refusal": STRING},
    "reasoning_text": {"text": STRING},
    "summary_text": {"text": STRING},
}

RESPONSE_SHAPE: Shape = {
    "id": STRING,
    "object": STRING,
    "created_at": NUMBER,
    "completed_at": (*NUMBER, None),
    "status": STRING,
    "incomplete_details": (dict, None),
    "model": STRING,
    "previous_response_id": (str, None),
    "instructions": (str, list, None),
    "output": ARRAY,
    "error": (dict, None),
    "tools": ARRAY,
    "tool_choice": (str, dict),
    "truncation": (str, None),
    "parallel_tool_calls": BOOLEAN,
    "text": OBJECT,
    "top_p": (*NUMBER, None),
    "presence_penalty": (*NUMBER, None),
    "frequency_penalty": (*NUMBER, None),
    "top_logprobs": (int, None),
    "temperature": (*NUMBER, None),
    "reasoning": (dict, None),
    "usage": (dict, None),
    "max_output_tokens": (int, None),
    "max_tool_calls": (int, None),
    "store": BOOLEAN,
    "background": BOOLEAN,
    "service_tier": (str, None),
    "metadata": (dict, None),
    "safety_identifier": (str, None),
    "prompt_cache_key": (str, None),
}
"""Keys of every Response object. All are present, null where the type allows it."""
NULLABLE_KEYS = ("background", *(key for key, types in RESPONSE_SHAPE.items() if None in types))
"""Keys without which SDKs read null. Clients read through the other ones without a check. `background` came in 2025."""

NEVER_NULL = ("phase", "encrypted_content", "content", "status", "namespace")
"""Optional keys of items. They are left out rather than null."""

ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "file_search_call": "fs",
    "web_search_call": "ws",
    "computer_call": "cu",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "local_shell_call": "lsh",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "apply_patch_call": "apc",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "compaction": "cmp",
}
"""Prefixes of OpenAI's ids. Other servers have ids of other forms, but none of them means another kind."""

EARLY_API_LACKS = {"response.output_text.delta": ("logprobs",), "response.output_text.done": ("logprobs",)}
"""Fields of events that streams of early 2025 do not have. They have no sequence numbers either."""


def has_type(value: object, types: Types) -> bool:
    """Returns whether a JSON value has one of the types. A boolean is no number."""
    if not types:
        return True
    if value is None:
        return None in types
    if isinstance(value, bool):
        return bool in types
    return any(kind is not None and isinstance(value, kind) for kind in types)


def check_shape(
    value: Mapping[str, Any], shape: Shape, name: str, findings: FindingList, optional: Sequence[str] = ()
) -> None:
    """Reports missing fields and fields of a wrong type of one event, item or part. `optional` ones may be missing."""
    for field, types in shape.items():
        if field not in value:
            code = "field-missing-early" if field in optional else "field-missing"
            findings.add(code, f"the field {field}", "no such field", f"{name}.{field}")
        elif not has_type(value[field], types):
            findings.add("field-type", _name_types(types), quote(value[field]), f"{name}.{field}")


def is_early_response(response: Mapping[str, Any]) -> bool:
    """Returns whether a Response has the form of early 2025, before background mode and service tiers."""
    return "background" not in response and "service_tier" not in response


def check_response_shape(response: Mapping[str, Any], findings: FindingList) -> None:
    """Reports missing keys of a Response object, each kind as one finding, and each key of a wrong type."""
    missing = [key for key in RESPONSE_SHAPE if key not in response]
    for code, keys in (
        ("response-key-missing", [key for key in missing if key not in NULLABLE_KEYS]),
        ("response-key-absent", [key for key in missing if key in NULLABLE_KEYS]),
    ):
        if keys:
            findings.add(code, "every key of a Response", f"none of {', '.join(keys)}")
    for key, types in RESPONSE_SHAPE.items():
        if key in response and not has_type(response[key], types):
            findings.add("response-key-type", _name_types(types), quote(response[key]), f"response.{key}")
    if response.get("object", "response") != "response":
        findings.add("response-key-type", '"response"', quote(response["object"]), "response.object")
    if "output_text" in response:
        findings.add(
            "output-text-on-wire", "no key output_text", quote(response["output_text"]), "response.output_text"
        )


def check_item_shape(item: Mapping[str, Any], findings: FindingList) -> None:
    """Reports an unknown kind of item, missing fields, and optional keys that are null."""
    kind = item.get("type")
    if not isinstance(kind, str):
        findings.add("field-missing", "the field type", quote(kind), "item.type")
        return
    if kind not in ITEM_SHAPES and ":" not in kind:
        findings.add("item-type-unknown", "a kind of item that the API knows", quote(kind), kind)
    check_shape(item, ITEM_SHAPES.get(kind, {}), kind, findings)
    if kind == "message" and item.get("role", "assistant") != "assistant":
        findings.add("item-role", "assistant", quote(item["role"]), f"message {item.get('id')}")
    _check_id_prefix(kind, as_text(item.get("id")), findings)
    for key in NEVER_NULL:
        if key in item and item[key] is None:
            findings.add("optional-null", "the key to be left out", "null", f"{kind}.{key}")
    for part in [*as_list(item.get("content")), *as_list(item.get("summary"))]:
        if isinstance(part, dict):
            check_part_shape(part, findings)


def _check_id_prefix(kind: str, item_id: str, findings: FindingList) -> None:
    prefix, separator, _ = item_id.partition("_")
    owner = next((other for other, known in ID_PREFIXES.items() if known == prefix), kind)
    if separator and owner != kind and kind in ID_PREFIXES:
        expected = f"no prefix, or {ID_PREFIXES[kind]}_"
        findings.add("item-id-prefix", expected, f"{prefix}_, the prefix of a {owner}", f"{kind} {item_id}")


def check_part_shape(part: Mapping[str, Any], findings: FindingList) -> None:
    """Reports an unknown kind of part and missing fields."""
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in PART_SHAPES:
        findings.add("part-type", f"one of {', '.join(PART_SHAPES)}", quote(kind), f"part {kind}")
        return
    check_shape(part, PART_SHAPES[kind], kind, findings)


def as_list(value: object) -> list[Any]:
    """Returns the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_objects(value: object) -> list[dict[str, Any]]:
    """Returns the objects in a list, an empty list if the value is none."""
    return [entry for entry in as_list(value) if isinstance(entry, dict)]


def as_text(value: object) -> str:
    """Returns the value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def decode_object(text: str | bytes) -> dict[str, Any] | None:
    """Returns the JSON object in a text; None if it holds none."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _name_types(types: Types) -> str:
    names: dict[type | None, str] = {
        str: "a string",
        int: "an integer",
        float: "a number",
        dict: "an object",
        list: "an array",
        None: "null",
    }
    return " or ".join(names.get(kind, "a boolean") for kind in types)
