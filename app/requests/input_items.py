"""Parser of the input of a Responses request: a string, or items that become the structs of `events.inputs`.

Clients send items back as they received them, with every key spelled out, so null and unknown keys of items are
accepted. Unknown types and roles, and parts that a role may not have, are not.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.app.base.errors import ApiError, clip_text, invalid_value, missing_field, not_found, unsupported_field
from antiphon.app.requests import tools as tools_of
from antiphon.app.requests import validators as c
from antiphon.app.requests.history import FindItem
from antiphon.app.requests.json_body import convert_value
from antiphon.app.requests.tools import RequestTools
from antiphon.events.inputs import (
    HOSTED_ITEM_TYPES,
    AdditionalToolsInput,
    AnyInput,
    CompactionInput,
    HostedInput,
    InputCustomCall,
    InputCustomOutput,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
    InputReasoning,
    ItemReference,
)

ITEM_TYPES: dict[str, type[AnyInput]] = {
    "message": InputMessage,
    "reasoning": InputReasoning,
    "function_call": InputFunctionCall,
    "function_call_output": InputFunctionOutput,
    "custom_tool_call": InputCustomCall,
    "custom_tool_call_output": InputCustomOutput,
    "item_reference": ItemReference,
    "additional_tools": AdditionalToolsInput,
    "compaction": CompactionInput,
}
TYPE_ALIASES = {"compaction_summary": "compaction"}
COMPACTION_TRIGGER = "compaction_trigger"
ROLES = ("assistant", "system", "developer", "user")
OUTPUT_PARTS = ("output_text", "refusal")
INPUT_PARTS = ("input_text", "input_image", "input_file")


class RequestInput(Struct, frozen=True):
    """Parsed input of a request: its items, and the tools that its `additional_tools` items add."""

    items: tuple[AnyInput, ...]
    tools: RequestTools = RequestTools()
    compact: bool = False
    """True if the input ended with a compaction trigger: the reply is a summary of the conversation."""


def read_input(value: str | Sequence[Any], lookup: FindItem, param: str = "input") -> RequestInput:
    """Reads the input at `param`. Raises `ApiError`: 400 with the path of the fault, 404 for a dangling reference."""
    if isinstance(value, str):
        return RequestInput((InputMessage(role="user", content=value),))
    if not value:
        raise missing_field(param)
    compact = is_trigger(value[-1])
    items: list[AnyInput] = []
    for index, entry in enumerate(value[:-1] if compact else value):
        path = f"{param}[{index}]"
        item = read_item(entry, path)
        if isinstance(item, ItemReference):
            item = _resolve_reference(item, path, lookup, param)
        elif isinstance(item, InputReasoning):
            item = _restore_reasoning(item, path, lookup)
        items.append(item)
    return RequestInput(tuple(items), additional_tools(items), compact)


def is_trigger(entry: Any) -> bool:
    """Tells whether an entry of the input is a compaction trigger."""
    return isinstance(entry, dict) and entry.get("type") == COMPACTION_TRIGGER


def additional_tools(items: Iterable[AnyInput]) -> RequestTools:
    """Returns the tools that the `additional_tools` items add."""
    result = RequestTools()
    for index, item in enumerate(items):
        if isinstance(item, AdditionalToolsInput):
            result += tools_of.read_tools(item.tools, f"input[{index}].tools")
    return result


def read_item(entry: Any, path: str) -> AnyInput:
    """Reads the item at `path`. Raises `ApiError` 400."""
    c.is_object(entry, path)
    fields = {key: value for key, value in entry.items() if value is not None}
    kind = _item_type(fields, path)
    fields["type"] = kind
    if kind in HOSTED_ITEM_TYPES:
        c.string_like()(fields.get("id", ""), f"{path}.id")
        return HostedInput(id=fields.get("id"), kind=kind, payload=entry)
    if kind == "message":
        _check_message(fields, path)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        _check_parts(fields.get("output"), INPUT_PARTS, f"{path}.output")
    elif kind == "item_reference":
        c.require_key(fields, "id", path)
    item: AnyInput = convert_value(fields, ITEM_TYPES[kind], path)
    return item


def check_calls(items: Iterable[AnyInput], param: str = "input") -> None:
    """Checks that each output follows its call and each call has an output. Raises `ApiError` 400, as OpenAI does."""
    answered_calls: dict[tuple[str, str], bool] = {}
    for item in items:
        if isinstance(item, InputFunctionCall | InputCustomCall):
            answered_calls[_call_kind(item), item.call_id] = False
        elif isinstance(item, InputFunctionOutput | InputCustomOutput):
            key = _call_kind(item), item.call_id
            if key not in answered_calls:
                message = f"No tool call found for {key[0]} output with call_id {clip_text(item.call_id)}."
                raise ApiError(400, None, message, param)
            answered_calls[key] = True
    for (kind, call_id), is_answered in answered_calls.items():
        if not is_answered:
            raise ApiError(400, None, f"No tool output found for {kind} {clip_text(call_id)}.", param)


def _item_type(sent: dict[str, Any], path: str) -> str:
    """Returns the item's type, which is implied in the short forms `{"role", "content"}` and `{"id"}`."""
    kind = sent.get("type")
    if kind is None:
        if "role" in sent:
            return "message"
        if set(sent) == {"id"}:
            return "item_reference"
        raise missing_field(f"{path}.type")
    c.string_like()(kind, f"{path}.type")
    if kind == COMPACTION_TRIGGER:
        raise invalid_value(
            f"{path}.type", f"Invalid '{path}': '{COMPACTION_TRIGGER}' must be the last item of the input."
        )
    kind = TYPE_ALIASES.get(kind, kind)
    if kind not in ITEM_TYPES and kind not in HOSTED_ITEM_TYPES:
        raise invalid_value(
            f"{path}.type", f"Invalid value: '{clip_text(kind)}'. Supported values are: {_known_types()}."
        )
    return str(kind)


def _call_kind(item: AnyInput) -> str:
    return "function call" if isinstance(item, InputFunctionCall | InputFunctionOutput) else "custom tool call"


def _known_types() -> str:
    return c.join_words(sorted([*ITEM_TYPES, *HOSTED_ITEM_TYPES]))


def _check_message(sent: dict[str, Any], path: str) -> None:
    c.one_of(ROLES)(c.require_key(sent, "role", path), f"{path}.role")
    _check_parts(sent.get("content"), OUTPUT_PARTS if sent["role"] == "assistant" else INPUT_PARTS, f"{path}.content")


def _check_parts(content: Any, allowed: tuple[str, ...], path: str) -> None:
    """Checks the types of content parts. Content that is not a list is left to the decoder."""
    if not isinstance(content, list):
        return
    for index, part in enumerate(content):
        part_path = f"{path}[{index}]"
        c.is_object(part, part_path)
        if c.require_key(part, "type", part_path) == "input_audio" and allowed is INPUT_PARTS:
            raise unsupported_field(part_path, "Audio input is not supported.")
        c.one_of(allowed)(part["type"], f"{part_path}.type")


def _resolve_reference(reference: ItemReference, path: str, lookup: FindItem, param: str) -> AnyInput:
    """Returns the referenced item, parsed as if the client had sent it."""
    stored_item = lookup(reference.id or "")
    if stored_item is None:
        raise not_found(f"Item with id '{clip_text(reference.id or '')}' not found.", param)
    if isinstance(stored_item, HostedInput):
        return stored_item
    return read_item(msgspec.to_builtins(stored_item), path)


def _restore_reasoning(sent: InputReasoning, path: str, lookup: FindItem) -> InputReasoning:
    """Returns the stored item if the client sent no text. LangChain keeps only the id of streamed raw reasoning."""
    if sent.content or sent.summary or sent.encrypted_content or not sent.id:
        return sent
    stored_item = lookup(sent.id)
    restored = None if stored_item is None else read_item(msgspec.to_builtins(stored_item), path)
    return restored if isinstance(restored, InputReasoning) else sent
