"""The input of a Responses request: a string, or items, as `events.inputs` knows them.

Clients send back what they were given, every key spelled out, so null and unknown keys of items are let through;
types, roles and the parts that a role may have are not.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.app.errors import ApiError, clip, invalid_value, missing, not_found, unsupported
from antiphon.app.requests import tools as tools_of
from antiphon.app.requests import validators as c
from antiphon.app.requests.history import Lookup
from antiphon.app.requests.json_body import convert
from antiphon.app.requests.tools import Tools
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

KINDS: dict[str, type[AnyInput]] = {
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
ALIASES = {"compaction_summary": "compaction"}
TRIGGER = "compaction_trigger"
ROLES = ("assistant", "system", "developer", "user")
SPOKEN = ("output_text", "refusal")
GIVEN = ("input_text", "input_image", "input_file")


class Input(Struct, frozen=True):
    """What was said before, and the tools that joined on the way."""

    items: tuple[AnyInput, ...]
    tools: Tools = Tools()
    compact: bool = False
    """They end with a trigger: what is asked for is a summary of it all."""


def read(value: str | Sequence[Any], lookup: Lookup, param: str = "input") -> Input:
    """The items at `param` of a request. Raises `ApiError`: 400 naming the place, 404 for a reference to nothing."""
    if isinstance(value, str):
        return Input((InputMessage(role="user", content=value),))
    if not value:
        raise missing(param)
    compact = is_trigger(value[-1])
    items: list[AnyInput] = []
    for index, entry in enumerate(value[:-1] if compact else value):
        path = f"{param}[{index}]"
        item = read_item(entry, path)
        if isinstance(item, ItemReference):
            item = _resolve(item, path, lookup, param)
        items.append(item)
    return Input(tuple(items), joined(items), compact)


def is_trigger(entry: Any) -> bool:
    """Whether an entry of the input asks for all that is before it to be compacted."""
    return isinstance(entry, dict) and entry.get("type") == TRIGGER


def joined(items: Iterable[AnyInput]) -> Tools:
    """The tools that joined on the way."""
    found = Tools()
    for index, item in enumerate(items):
        if isinstance(item, AdditionalToolsInput):
            found += tools_of.read(item.tools, f"input[{index}].tools")
    return found


def read_item(entry: Any, path: str) -> AnyInput:
    """One item, which stands at `path`."""
    c.obj(entry, path)
    sent = {key: value for key, value in entry.items() if value is not None}
    kind = _kind(sent, path)
    sent["type"] = kind
    if kind in HOSTED_ITEM_TYPES:
        c.string()(sent.get("id", ""), f"{path}.id")
        return HostedInput(id=sent.get("id"), kind=kind, payload=entry)
    if kind == "message":
        _check_message(sent, path)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        _check_parts(sent.get("output"), GIVEN, f"{path}.output")
    elif kind == "item_reference":
        c.needed(sent, "id", path)
    item: AnyInput = convert(sent, KINDS[kind], path)
    return item


def check_calls(items: Iterable[AnyInput], param: str = "input") -> None:
    """Every output has its call before it, and every call its output. Raises `ApiError` 400 as the real API does."""
    called: dict[tuple[str, str], bool] = {}
    for item in items:
        if isinstance(item, InputFunctionCall | InputCustomCall):
            called[_what(item), item.call_id] = False
        elif isinstance(item, InputFunctionOutput | InputCustomOutput):
            key = _what(item), item.call_id
            if key not in called:
                message = f"No tool call found for {key[0]} output with call_id {clip(item.call_id)}."
                raise ApiError(400, None, message, param)
            called[key] = True
    for (kind, call_id), answered in called.items():
        if not answered:
            raise ApiError(400, None, f"No tool output found for {kind} {clip(call_id)}.", param)


def _kind(sent: dict[str, Any], path: str) -> str:
    """The type, also of the bare forms `{"role", "content"}` and `{"id"}`."""
    kind = sent.get("type")
    if kind is None:
        if "role" in sent:
            return "message"
        if set(sent) == {"id"}:
            return "item_reference"
        raise missing(f"{path}.type")
    c.string()(kind, f"{path}.type")
    if kind == TRIGGER:
        raise invalid_value(f"{path}.type", f"Invalid '{path}': a '{TRIGGER}' is the last item of an input.")
    kind = ALIASES.get(kind, kind)
    if kind not in KINDS and kind not in HOSTED_ITEM_TYPES:
        raise invalid_value(f"{path}.type", f"Invalid value: '{clip(kind)}'. Supported values are: {_known()}.")
    return str(kind)


def _what(item: AnyInput) -> str:
    return "function call" if isinstance(item, InputFunctionCall | InputFunctionOutput) else "custom tool call"


def _known() -> str:
    return c.listed(sorted([*KINDS, *HOSTED_ITEM_TYPES]))


def _check_message(sent: dict[str, Any], path: str) -> None:
    c.one_of(ROLES)(c.needed(sent, "role", path), f"{path}.role")
    _check_parts(sent.get("content"), SPOKEN if sent["role"] == "assistant" else GIVEN, f"{path}.content")


def _check_parts(content: Any, allowed: tuple[str, ...], path: str) -> None:
    """Parts of the kinds that may stand here. What is no list is left to the decoder."""
    if not isinstance(content, list):
        return
    for index, part in enumerate(content):
        place = f"{path}[{index}]"
        c.obj(part, place)
        if c.needed(part, "type", place) == "input_audio" and allowed is GIVEN:
            raise unsupported(place, "No model here hears.")
        c.one_of(allowed)(part["type"], f"{place}.type")


def _resolve(reference: ItemReference, path: str, lookup: Lookup, param: str) -> AnyInput:
    """The item that a reference means, as if the client had sent it."""
    found = lookup(reference.id or "")
    if found is None:
        raise not_found(f"Item with id '{clip(reference.id or '')}' not found.", param)
    if isinstance(found, HostedInput):
        return found
    return read_item(msgspec.to_builtins(found), path)
