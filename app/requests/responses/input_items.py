"""Parser of the input of a Responses request: a string, or items that become the structs of `events.inputs`.

Clients send items back as they received them, with every key spelled out, so null and unknown keys of items are
accepted. Unknown types and roles, and parts that a role may not have, are not.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from antiphon.app.errors import (
    clip_text,
    invalid_type,
    invalid_value,
    missing_field,
    not_found,
    unsupported_field,
)
from antiphon.app.requests import tools as tools_of
from antiphon.app.requests.fields import decode_value
from antiphon.app.requests.fields.checks import check_choice, check_string
from antiphon.app.requests.responses.configuration import check_update
from antiphon.app.requests.responses.duplicates import check_duplicates
from antiphon.app.requests.responses.history import FindItem
from antiphon.app.requests.tools import RequestTools
from antiphon.events.hosted_inputs import (
    HOSTED_INPUTS,
    InputCodeCall,
    InputFileSearchCall,
    InputHostedItem,
    InputSearchAction,
    InputWebSearchCall,
)
from antiphon.events.inputs import (
    HOSTED_ITEM_TYPES,
    AdditionalToolsInput,
    AnyInput,
    CompactionInput,
    ConfigurationUpdate,
    HostedInput,
    InputAudio,
    InputCustomCall,
    InputCustomOutput,
    InputFunctionCall,
    InputFunctionOutput,
    InputLocalShellCall,
    InputLocalShellOutput,
    InputMessage,
    InputPart,
    InputPatchCall,
    InputPatchOutput,
    InputReasoning,
    InputShellCall,
    InputShellOutput,
    InputToolSearchCall,
    InputToolSearchOutput,
    ItemReference,
)
from antiphon.harmony.prompt.builtin_items import begins_conversation

ITEM_TYPES: dict[str, type[AnyInput]] = {
    "message": InputMessage,
    "reasoning": InputReasoning,
    "function_call": InputFunctionCall,
    "function_call_output": InputFunctionOutput,
    "custom_tool_call": InputCustomCall,
    "custom_tool_call_output": InputCustomOutput,
    "shell_call": InputShellCall,
    "shell_call_output": InputShellOutput,
    "apply_patch_call": InputPatchCall,
    "apply_patch_call_output": InputPatchOutput,
    "local_shell_call": InputLocalShellCall,
    "local_shell_call_output": InputLocalShellOutput,
    "tool_search_call": InputToolSearchCall,
    "tool_search_output": InputToolSearchOutput,
    "item_reference": ItemReference,
    "additional_tools": AdditionalToolsInput,
    "compaction": CompactionInput,
    "configuration_update": ConfigurationUpdate,
    **HOSTED_INPUTS,
}
ITEM_TYPE_ALIASES = {"compaction_summary": "compaction"}
COMPACTION_TRIGGER = "compaction_trigger"
SEARCH_ITEM_TYPES = ("tool_search_call", "tool_search_output")
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
            referenced = _find_stored(item.id or "", path, lookup)
            if referenced is None:
                raise not_found(f"Item with id '{clip_text(item.id or '')}' not found.", param)
            item = referenced
        elif isinstance(item, InputReasoning):
            item = _restore_reasoning(item, path, lookup)
        elif isinstance(item, InputHostedItem):
            item = _restore_outputs(item, path, lookup)
        items.append(item)
    check_duplicates(items, param)
    return RequestInput(tuple(items), additional_tools(items), compact)


def is_trigger(entry: Any) -> bool:
    """Tells whether an entry of the input is a compaction trigger."""
    return isinstance(entry, dict) and entry.get("type") == COMPACTION_TRIGGER


def add_compaction_trigger(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the Responses request that asks for a compaction alone: a trigger ends its input; it is not stored."""
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if items is None or isinstance(items, list):
        items = [*(items or ()), {"type": COMPACTION_TRIGGER}]
    return {**body, "input": items, "store": False}


def additional_tools(items: Iterable[AnyInput]) -> RequestTools:
    """Returns the tools that items add. Those added after the conversation has begun are loaded tools."""
    result, has_begun = RequestTools(), False
    for index, item in enumerate(items):
        has_begun = has_begun or begins_conversation(item)
        if isinstance(item, AdditionalToolsInput | InputToolSearchOutput):
            added = tools_of.read_tools(item.tools, f"input[{index}].tools")
            result += structs.replace(added, num_loaded=len(added.served), deferred=()) if has_begun else added
    return result


def read_item(entry: Any, path: str) -> AnyInput:
    """Reads the item at `path`. Raises `ApiError` 400."""
    if not isinstance(entry, dict):
        raise invalid_type(path, "an object", entry)
    fields = {key: value for key, value in entry.items() if value is not None}
    kind = fields["type"] = _item_type(fields, path)
    if kind in HOSTED_ITEM_TYPES or (kind in SEARCH_ITEM_TYPES and not _has_search_call(fields)):
        check_string(fields.get("id", ""), f"{path}.id")
        return HostedInput(id=fields.get("id"), kind=kind, payload=entry)
    if kind == "local_shell_call_output" and "call_id" not in fields:
        fields["call_id"] = fields.get("id")
    # openai for Python sends its own objects with the names of their attributes.
    if kind in ("function_call", "custom_tool_call") and "async_" in fields:
        fields["async"] = fields.pop("async_")
    if kind == "item_reference" and "id" not in fields:
        raise missing_field(f"{path}.id")
    item: AnyInput = decode_value(fields, ITEM_TYPES[kind], path)
    if isinstance(item, InputMessage):
        _check_parts(item.content, OUTPUT_PARTS if item.role == "assistant" else INPUT_PARTS, f"{path}.content")
    elif isinstance(item, InputFunctionOutput | InputCustomOutput):
        _check_parts(item.output, INPUT_PARTS, f"{path}.output")
    elif isinstance(item, ConfigurationUpdate):
        check_update(item, path)
    return item


def _has_search_call(fields: dict[str, Any]) -> bool:
    """Tells whether an item of a search among tools names its call. Those of OpenAI's own searches do not."""
    return "call_id" in fields and fields.get("execution") in ("client", "server")


def _item_type(sent: dict[str, Any], path: str) -> str:
    """Returns the item's type, which is implied in the short forms `{"role", "content"}` and `{"id"}`."""
    kind = sent.get("type")
    if kind is None:
        if "role" in sent:
            return "message"
        if set(sent) == {"id"}:
            return "item_reference"
        raise missing_field(f"{path}.type")
    if kind == COMPACTION_TRIGGER:
        raise invalid_value(
            f"{path}.type", f"Invalid '{path}': '{COMPACTION_TRIGGER}' must be the last item of the input."
        )
    if not isinstance(kind, str):
        raise invalid_type(f"{path}.type", "a string", kind)
    kind = ITEM_TYPE_ALIASES.get(kind, kind)
    if kind not in ITEM_TYPES and kind not in HOSTED_ITEM_TYPES:
        check_choice(kind, sorted([*ITEM_TYPES, *HOSTED_ITEM_TYPES]), f"{path}.type")
    return kind


def _check_parts(content: str | Sequence[InputPart], allowed: tuple[str, ...], path: str) -> None:
    """Checks that a role may have the parts of its message. Raises `ApiError` 400."""
    for index, part in enumerate(() if isinstance(content, str) else content):
        if isinstance(part, InputAudio) and allowed is INPUT_PARTS:
            raise unsupported_field(f"{path}[{index}]", "Audio input is not supported.")
        kind = part.__struct_config__.tag
        if kind not in allowed:
            check_choice(kind, allowed, f"{path}[{index}].type")


def _find_stored(item_id: str, path: str, lookup: FindItem) -> AnyInput | None:
    """Returns the stored item with this id, parsed as if the client had sent it at `path`; None if there is none."""
    stored_item = lookup(item_id)
    if stored_item is None or isinstance(stored_item, HostedInput):
        return stored_item
    return read_item(msgspec.to_builtins(stored_item), path)


def _restore_reasoning(sent: InputReasoning, path: str, lookup: FindItem) -> InputReasoning:
    """Returns the stored item if the client sent no text. LangChain keeps only the id of streamed raw reasoning."""
    if sent.content or sent.summary or sent.encrypted_content or not sent.id:
        return sent
    restored = _find_stored(sent.id, path, lookup)
    return restored if isinstance(restored, InputReasoning) else sent


def _restore_outputs(sent: AnyInput, path: str, lookup: FindItem) -> AnyInput:
    """Returns the item with what its tool returned, if it is stored and the client sent none.

    A reply leaves it out unless its request includes it, so the client may not have it.
    """
    match sent:
        case InputCodeCall(id=str() as item_id, outputs=None):
            stored = _find_stored(item_id, path, lookup)
            return structs.replace(sent, outputs=stored.outputs) if isinstance(stored, InputCodeCall) else sent
        case InputFileSearchCall(id=str() as item_id, results=None):
            stored = _find_stored(item_id, path, lookup)
            return structs.replace(sent, results=stored.results) if isinstance(stored, InputFileSearchCall) else sent
        case InputWebSearchCall(id=str() as item_id, action=InputSearchAction(type="search", sources=None) as action):
            stored = _find_stored(item_id, path, lookup)
            if isinstance(stored, InputWebSearchCall) and stored.action is not None:
                return structs.replace(sent, action=structs.replace(action, sources=stored.action.sources))
    return sent
