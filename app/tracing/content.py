"""Prompts and outputs in the JSON form of the conventions, cut to a size. They are built only if the operator asks.

Pictures and files have their types, never bytes or URLs.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.app.tracing import conventions as names
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem
from antiphon.harmony.format import PromptInput
from antiphon.harmony.tools import ToolSpec

MAX_CONTENT_BYTES = 64 * 1024
"""Size of each attribute with content."""
CUT_LENGTHS = (16_384, 4096, 1024, 256, 64)
"""Lengths to which texts are cut, one after the other, until the whole fits."""
SPAN_CUT_MARK = "…[cut]"
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"})
Json = dict[str, Any]


def build_content(prompt_input: PromptInput, output: Sequence[OutputItem], finish_reason: str) -> dict[str, str]:
    """Returns the attributes with the content of a turn, each as JSON."""
    found: dict[str, list[Json]] = {
        names.INPUT_MESSAGES: [_describe_item(item) for item in prompt_input.items],
        names.OUTPUT_MESSAGES: [
            {
                "role": "assistant",
                "parts": [part for item in output for part in _describe_item(item)["parts"]],
                "finish_reason": finish_reason,
            }
        ],
        names.TOOL_DEFINITIONS: [_describe_tool(tool) for tool in prompt_input.tools],
    }
    if prompt_input.instructions:
        found[names.SYSTEM_INSTRUCTIONS] = [{"type": "text", "content": prompt_input.instructions}]
    return {name: encode_cut(value) for name, value in found.items() if value}


def encode_cut(values: list[Json], max_bytes: int = MAX_CONTENT_BYTES) -> str:
    """Returns a list as JSON of at most `max_bytes`: its texts are cut, then the oldest values are left out."""
    for length in CUT_LENGTHS:
        cut = [_cut(value, length) for value in values]
        encoded = msgspec.json.encode(cut)
        if len(encoded) <= max_bytes:
            return encoded.decode()
    sizes = [len(msgspec.json.encode(value)) + 1 for value in cut]
    total = sum(sizes) + 2
    first = 0
    while first < len(cut) and total > max_bytes:
        total -= sizes[first]
        first += 1
    return msgspec.json.encode(cut[first:]).decode()


def _cut(value: Any, length: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= length else value[:length] + SPAN_CUT_MARK
    if isinstance(value, dict):
        return {key: _cut(each, length) for key, each in value.items()}
    return [_cut(each, length) for each in value] if isinstance(value, list) else value


def _describe_tool(tool: ToolSpec) -> Json:
    fields = {"description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "name": tool.name, **{name: value for name, value in fields.items() if value}}


def _describe_item(item: AnyInput | OutputItem) -> Json:
    """Returns an item as a message of the conventions."""
    kind = str(type(item).__struct_config__.tag)
    call_id = getattr(item, "call_id", None) or getattr(item, "id", None) or ""
    if kind == "message":
        return {"role": getattr(item, "role", "assistant"), "parts": _list_texts(getattr(item, "content", ()))}
    if kind == "reasoning":
        shown = getattr(item, "content", None) or getattr(item, "summary", None) or ()
        parts = [{"type": "reasoning", "content": part["content"]} for part in _list_texts(shown) if "content" in part]
        return {"role": "assistant", "parts": parts}
    if kind.endswith("_output"):
        response = getattr(item, "output", "")
        shown = response if isinstance(response, str) else _list_texts(response)
        return {"role": "tool", "parts": [{"type": "tool_call_response", "id": call_id, "response": shown}]}
    if kind.endswith("_call"):
        arguments = getattr(item, "arguments", None) or getattr(item, "input", None) or ""
        part = {"type": "tool_call", "id": call_id, "name": getattr(item, "name", None) or kind, "arguments": arguments}
        return {"role": "assistant", "parts": [part]}
    return {"role": "assistant", "parts": [{"type": kind}]}


def _list_texts(content: Any) -> list[Json]:
    """Returns the parts of a message. Of pictures and files, only the type is shown."""
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    parts = []
    for part in content or ():
        kind = str(type(part).__struct_config__.tag) if isinstance(part, msgspec.Struct) else "unknown"
        text = getattr(part, "text", None) or getattr(part, "refusal", None)
        parts.append({"type": "text", "content": text} if kind in _TEXT_PARTS and text is not None else {"type": kind})
    return parts
