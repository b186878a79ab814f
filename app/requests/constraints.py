"""What a request wants to be held to: which tools may be called, what the text must be, and whether that can be kept.

A promise is a schema or a grammar with the place it came from. It is tried before anything is said, off the event loop,
so that one that nobody can keep is a 400 which names it.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from msgspec import Struct

from antiphon.app.errors import ApiError, clip, invalid_value, unsupported
from antiphon.app.requests import validators as c
from antiphon.app.requests.tools import Tools
from antiphon.events.inputs import CustomTool, FunctionTool, GrammarFormat, NamespaceTool
from antiphon.harmony.tools import ToolTable

Kind = Literal["schema", "lark", "regex"]
CODES = {"text.format.schema": "invalid_json_schema", "response_format.json_schema.schema": "invalid_json_schema"}
FAULTS = {"schema": "invalid_function_parameters", "lark": "invalid_grammar", "regex": "invalid_grammar"}
LIMITS = LLParserLimits(max_grammar_size=200_000, verbose_errors=False)
NAMED = ("function", "custom")


class Promise(Struct, frozen=True):
    """Something that the answer must fit, and the field that says so."""

    kind: Kind
    source: str
    param: str


class Choice(Struct, frozen=True):
    """What `tool_choice` comes down to. `only`: the flat names that may be called, None: all."""

    mode: Literal["auto", "none", "required"] = "auto"
    only: frozenset[str] | None = None


def choice(sent: Any, table: ToolTable) -> Choice:
    """Read `tool_choice`, as Responses has it. Raises `ApiError` 400."""
    if sent in ("auto", "none", "required"):
        return Choice(sent)
    if sent is None:
        return Choice()
    kind = sent["type"]
    if kind in NAMED:
        return Choice("required", frozenset({_named(sent, table, "tool_choice")}))
    if kind != "allowed_tools":
        raise unsupported("tool_choice", f"No tool of type '{clip(kind)}' runs here.")
    mode = c.needed(sent, "mode", "tool_choice")
    c.one_of(("auto", "required"))(mode, "tool_choice.mode")
    allowed = c.needed(sent, "tools", "tool_choice")
    c.array_of(c.obj, 128)(allowed, "tool_choice.tools")
    if not allowed:
        raise invalid_value("tool_choice.tools", "Invalid 'tool_choice.tools': at least one tool must be allowed.")
    names = [
        _named(tool, table, f"tool_choice.tools[{index}]")
        for index, tool in enumerate(allowed)
        if c.needed(tool, "type", f"tool_choice.tools[{index}]") in NAMED
    ]
    return Choice(mode, frozenset(names))


def answer(shape: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The schema that the text must fit, by `text.format`; None: any text."""
    kind = (shape or {}).get("type")
    if shape is None or kind in (None, "text"):
        return None
    return shape["schema"] if kind == "json_schema" else {"type": "object"}


def of_tools(tools: Tools) -> list[Promise]:
    """What the tools promise: strict arguments, and texts by a grammar."""
    found: list[Promise] = []
    for offer, path in zip(tools.offers, tools.paths, strict=True):
        inner = offer.tools if isinstance(offer, NamespaceTool) else (offer,)
        for index, tool in enumerate(inner):
            place = f"{path}.tools[{index}]" if isinstance(offer, NamespaceTool) else path
            found += _of_tool(tool, place)
    return found


def _of_tool(tool: FunctionTool | CustomTool, path: str) -> list[Promise]:
    if isinstance(tool, FunctionTool):
        schema = json.dumps(tool.parameters or {"type": "object"})
        return [Promise("schema", schema, f"{path}.parameters")] if tool.strict else []
    shape = tool.format
    if not isinstance(shape, GrammarFormat):
        return []
    return [Promise("regex" if shape.syntax == "regex" else "lark", shape.definition, f"{path}.format.definition")]


def check(promise: Promise) -> None:
    """Raise `ApiError` 400 for a promise that cannot be kept. May take long; any thread may ask."""
    fault = _fault(promise.kind, promise.source)
    if fault:
        code = CODES.get(promise.param) or FAULTS[promise.kind]
        raise ApiError(400, code, f"Invalid '{promise.param}': {clip(fault, 400)}", promise.param)


@lru_cache(maxsize=512)
def _fault(kind: Kind, source: str) -> str:
    """What is wrong with it; nothing: it can be kept."""
    try:
        if kind == "schema":
            grammar = LLMatcher.grammar_from_json_schema(source)
        else:
            make = LLMatcher.grammar_from_lark if kind == "lark" else LLMatcher.grammar_from_regex
            grammar = make(source)
        matcher = LLMatcher(_bytes(), grammar, log_level=0, limits=LIMITS)
        first = matcher.compute_bitmask()  # which alone tells of a rule that never comes to an end
    except ValueError as error:
        return str(error)
    if matcher.is_error():
        return str(matcher.get_error())
    return "" if any(first) else "it matches nothing"


class _Bytes:
    """A vocabulary of bytes: whether a grammar is one does not depend on how a model cuts text."""

    tokens = [*(bytes([value]) for value in range(256)), b"<end>"]  # noqa: RUF012  # never changed
    special_token_ids = [256]  # noqa: RUF012
    eos_token_id = 256
    bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@lru_cache(maxsize=1)
def _bytes() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()))


def _named(sent: Mapping[str, Any], table: ToolTable, path: str) -> str:
    """The flat name of a tool that must be there."""
    name, namespace = c.needed(sent, "name", path), sent.get("namespace")
    c.string()(name, f"{path}.name")
    for offer in table:
        if offer.name == name and offer.kind == sent["type"] and namespace in (None, offer.namespace):
            return offer.model_name
    raise invalid_value("tool_choice", f"Tool choice '{clip(name)}' not found in 'tools' parameter.")
