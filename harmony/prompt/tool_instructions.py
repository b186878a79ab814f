"""Descriptions of tools in a prompt: JSON Schemas for the template, or instructions as text."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.harmony.tokens.special_tokens import SpecialTokenEscaper
from antiphon.harmony.tools import INPUT, ToolCall, ToolSpec, ToolTable

NO_PARAMETERS = {"type": "object", "properties": {}}

WriteCalls = Callable[[Sequence[ToolCall], int], str]
"""Writes calls as the model would. The number is that of the calls in the conversation before these."""
"""Writes calls as the model would generate them."""


def tool_instructions(tools: ToolTable, escaper: SpecialTokenEscaper, write_calls: WriteCalls, *, custom: bool) -> str:
    """Returns instructions for the tools of a model whose template does not support tools; empty if there are none.

    `custom` includes tools that take raw text.
    """
    functions = [schema["function"] for schema in tool_schemas(tools, escaper, custom=custom, native=False)]
    if not functions:
        return ""
    schemas = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    example = write_calls([(ToolSpec(model_name="NAME", name="NAME"), '{"PARAMETER": "VALUE"}')], 0)
    text = f"You may call these tools:\n\n{schemas}\n\nTo call one, write its name and its arguments so:\n{example}"
    return f"# Tools\n\n{text}"


def function_arguments(tool: ToolSpec, text: str) -> str:
    """Returns the arguments of a call as JSON; a custom tool's text becomes the one argument of a function."""
    return json.dumps({INPUT: text}, ensure_ascii=False) if tool.kind == "custom" else text


def tool_schemas(tools: ToolTable, escaper: SpecialTokenEscaper, *, custom: bool, native: bool) -> list[dict[str, Any]]:
    """Returns the tools as templates expect them. `custom` includes raw-text tools, as functions unless `native`."""
    return [_tool_schema(tool, escaper, native=native) for tool in tools if custom or tool.kind == "function"]


def _tool_schema(tool: ToolSpec, escaper: SpecialTokenEscaper, *, native: bool) -> dict[str, Any]:
    fields = {"name": escaper.escape_text(tool.model_name), "description": escaper.escape_text(tool.description)}
    if tool.kind == "custom" and native:
        return {"type": "custom", "custom": fields}
    if tool.kind == "custom":
        properties = {INPUT: {"type": "string", "description": "The raw text."}}
        return {
            "type": "function",
            "function": {**fields, "parameters": {"type": "object", "properties": properties, "required": [INPUT]}},
        }
    parameters = NO_PARAMETERS if tool.parameters is None else escaper.escape_value(tool.parameters)
    return {"type": "function", "function": {**fields, "parameters": parameters}}


def freeform_instructions(text: str, tools: ToolTable, escaper: SpecialTokenEscaper) -> str:
    """Returns the dialect's instructions `text` with the custom tools filled in; empty if there are none."""
    lines = [
        f"- {escaper.escape_text(tool.model_name)}: {escaper.escape_text(_describe_tool(tool))}"
        for tool in tools
        if tool.kind == "custom"
    ]
    return text.replace("{tools}", "\n".join(lines), 1) if lines else ""


def _describe_tool(tool: ToolSpec) -> str:
    definition = "" if tool.builtin else getattr(tool.format, "definition", "")  # its description explains the format
    rules = f"\nIts text must match this grammar:\n{definition}" if definition else ""
    return f"{tool.description or 'no description'}{rules}"
