"""Parser of `tool_choice`: the tools that the model may call, and whether it must call one."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from antiphon.app.errors import clip_text, invalid_value, unsupported_field
from antiphon.app.requests import validators as c
from antiphon.harmony.tools import ToolTable

NAMED_TOOL_TYPES = ("function", "custom")


class ToolChoice(Struct, frozen=True):
    """A parsed `tool_choice`. `allowed_tools` has the `model_name` of each tool that may be called; None allows all."""

    mode: Literal["auto", "none", "required"] = "auto"
    allowed_tools: frozenset[str] | None = None


def read_tool_choice(sent: Any, table: ToolTable) -> ToolChoice:
    """Parses `tool_choice` in the form of Responses. Raises `ApiError` 400."""
    if sent in ("auto", "none", "required"):
        return ToolChoice(sent)
    if sent is None:
        return ToolChoice()
    kind = sent["type"]
    if kind in NAMED_TOOL_TYPES:
        return ToolChoice("required", frozenset({_find_named_tool(sent, table, "tool_choice")}))
    if kind != "allowed_tools":
        raise unsupported_field("tool_choice", f"This server runs no tools of type '{clip_text(kind)}'.")
    mode = c.require_key(sent, "mode", "tool_choice")
    c.one_of(("auto", "required"))(mode, "tool_choice.mode")
    allowed = c.require_key(sent, "tools", "tool_choice")
    c.array_of(c.is_object, 128)(allowed, "tool_choice.tools")
    if not allowed:
        raise invalid_value("tool_choice.tools", "Invalid 'tool_choice.tools': at least one tool must be allowed.")
    names = [
        _find_named_tool(tool, table, f"tool_choice.tools[{index}]")
        for index, tool in enumerate(allowed)
        if c.require_key(tool, "type", f"tool_choice.tools[{index}]") in NAMED_TOOL_TYPES
    ]
    return ToolChoice(mode, frozenset(names))


def _find_named_tool(sent: Mapping[str, Any], table: ToolTable, path: str) -> str:
    """Returns the `model_name` of a named tool. Raises `ApiError` 400 if the request does not offer it."""
    name, namespace = c.require_key(sent, "name", path), sent.get("namespace")
    c.string_like()(name, f"{path}.name")
    for tool in table:
        if tool.name == name and tool.kind == sent["type"] and namespace in (None, tool.namespace):
            return tool.model_name
    raise invalid_value("tool_choice", f"Tool choice '{clip_text(name)}' not found in 'tools' parameter.")
