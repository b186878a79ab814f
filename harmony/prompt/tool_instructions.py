"""Tools as a prompt describes them: JSON Schemas for the template, or instructions in words."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.harmony.tokens.special_tokens import SpecialTokenEscaper
from antiphon.harmony.tools import INPUT, ToolCall, ToolSpec, ToolTable

NO_PARAMETERS = {"type": "object", "properties": {}}

WriteCalls = Callable[[Sequence[ToolCall]], str]
"""Writes calls as the model would write them."""


def tool_instructions(tools: ToolTable, guard: SpecialTokenEscaper, spell: WriteCalls, *, custom: bool) -> str:
    """What a model is told of its tools where its template has no place for them; empty if there are none.

    `custom`: of tools that take raw text, too.
    """
    offered = [schema["function"] for schema in tool_schemas(tools, guard, custom=custom, native=False)]
    if not offered:
        return ""
    listed = "\n".join(json.dumps(function, ensure_ascii=False) for function in offered)
    example = spell([(ToolSpec(model_name="NAME", name="NAME"), '{"PARAMETER": "VALUE"}')])
    told = f"You may call these tools:\n\n{listed}\n\nTo call one, write its name and its arguments so:\n{example}"
    return f"# Tools\n\n{told}"


def function_arguments(offer: ToolSpec, text: str) -> str:
    """The arguments of a call; a custom tool's text as the one parameter of a function."""
    return json.dumps({INPUT: text}, ensure_ascii=False) if offer.kind == "custom" else text


def tool_schemas(tools: ToolTable, guard: SpecialTokenEscaper, *, custom: bool, native: bool) -> list[dict[str, Any]]:
    """The tools as templates know them. `custom`: tools that take raw text, too, as functions unless `native`."""
    return [_tool_schema(offer, guard, native=native) for offer in tools if custom or offer.kind == "function"]


def _tool_schema(offer: ToolSpec, guard: SpecialTokenEscaper, *, native: bool) -> dict[str, Any]:
    named = {"name": guard.escape_text(offer.model_name), "description": guard.escape_text(offer.description)}
    if offer.kind == "custom" and native:
        return {"type": "custom", "custom": named}
    if offer.kind == "custom":
        properties = {INPUT: {"type": "string", "description": "The raw text."}}
        return {
            "type": "function",
            "function": {**named, "parameters": {"type": "object", "properties": properties, "required": [INPUT]}},
        }
    parameters = NO_PARAMETERS if offer.parameters is None else guard.escape_value(offer.parameters)
    return {"type": "function", "function": {**named, "parameters": parameters}}


def freeform_instructions(text: str, tools: ToolTable, guard: SpecialTokenEscaper) -> str:
    """How to call the offered custom tools, in the dialect's own words; empty if there are none."""
    lines = [
        f"- {guard.escape_text(offer.model_name)}: {guard.escape_text(_describe_tool(offer))}"
        for offer in tools
        if offer.kind == "custom"
    ]
    return text.replace("{tools}", "\n".join(lines), 1) if lines else ""


def _describe_tool(offer: ToolSpec) -> str:
    definition = getattr(offer.format, "definition", "")
    rules = f"\nIts text must match this grammar:\n{definition}" if definition else ""
    return f"{offer.description or 'no description'}{rules}"
