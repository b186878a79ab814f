"""The items of a conversation as every prompt shows them: messages, reasoning, calls of functions and custom tools."""

import json
from collections.abc import Iterator, Sequence

from antiphon.events.inputs import (
    AnyInput,
    HostedInput,
    InputFunctionCall,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputText,
)
from antiphon.events.media_parts import list_media, read_screenshot
from antiphon.harmony.prompt.async_calls import show_pending_calls
from antiphon.harmony.prompt.builtin_items import show_builtin_calls
from antiphon.harmony.prompt.hosted_items import show_hosted_items
from antiphon.harmony.tools import ToolTable

COMPUTER_NAME = "computer"
"""Name under which the model reads calls of a computer."""
NO_SCREENSHOT = "[no screenshot]"


def show_items(items: Sequence[AnyInput], tools: ToolTable) -> tuple[AnyInput, ...]:
    """Returns the items with those of hosted and built-in tools as calls and outputs, and pending calls answered."""
    shown = show_hosted_items(show_computer_calls(items))
    return show_builtin_calls(show_pending_calls(shown, tools), tools)


def list_images(items: Sequence[AnyInput]) -> Iterator[InputImage]:
    """Yields the pictures that a prompt of these items shows to a model that sees: all but those of the assistant."""
    for item in show_computer_calls(items):
        if not (isinstance(item, InputMessage) and item.role == "assistant"):
            yield from (part for part in list_media(item) if isinstance(part, InputImage))


def show_computer_calls(items: Sequence[AnyInput]) -> tuple[AnyInput, ...]:
    """Returns the items with calls of a computer as calls of a function, and screenshots as their outputs.

    Nothing has checked these items. A screenshot without its call is a message, a call without a screenshot gets one
    that tells so, and an item without the id of a call is left out.
    """
    call_ids = {kind: _list_call_ids(items, kind) for kind in ("computer_call", "computer_call_output")}
    shown: list[AnyInput] = []
    for item in items:
        kind = item.kind if isinstance(item, HostedInput) else ""
        if not isinstance(item, HostedInput) or kind not in call_ids:
            shown.append(item)
            continue
        call_id = item.payload.get("call_id")
        if not isinstance(call_id, str) or not call_id:
            continue
        if kind == "computer_call":
            shown.append(InputFunctionCall(call_id=call_id, name=COMPUTER_NAME, arguments=_write_actions(item)))
            if call_id not in call_ids["computer_call_output"]:
                shown.append(InputFunctionOutput(call_id=call_id, output=NO_SCREENSHOT))
            continue
        content = (read_screenshot(item) or InputText(text=NO_SCREENSHOT),)
        if call_id in call_ids["computer_call"]:
            shown.append(InputFunctionOutput(call_id=call_id, output=content))
        else:
            shown.append(InputMessage(role="user", content=content))
    return tuple(shown)


def _list_call_ids(items: Sequence[AnyInput], kind: str) -> list[object]:
    return [item.payload.get("call_id") for item in items if isinstance(item, HostedInput) and item.kind == kind]


def _write_actions(item: HostedInput) -> str:
    """Returns the arguments of a call: its action, or its list of actions."""
    action, actions = item.payload.get("action"), item.payload.get("actions")
    return json.dumps(action or ({"actions": actions} if actions else {}), ensure_ascii=False)
