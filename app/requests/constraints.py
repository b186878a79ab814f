"""Output constraints of a request: JSON Schemas and grammars that the output must match.

A constraint keeps the path of its field in the request. It is compiled off the event loop before generation starts,
so that a constraint that cannot be met returns a 400 that names the field.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text
from antiphon.app.requests.tools import RequestTools
from antiphon.events.inputs import CustomTool, FunctionTool, GrammarFormat, NamespaceTool

ConstraintKind = Literal["schema", "lark", "regex"]
SCHEMA_ERROR_CODES = {
    "text.format.schema": "invalid_json_schema",
    "response_format.json_schema.schema": "invalid_json_schema",
}
ERROR_CODES = {"schema": "invalid_function_parameters", "lark": "invalid_grammar", "regex": "invalid_grammar"}
GRAMMAR_LIMITS = LLParserLimits(max_grammar_size=200_000, verbose_errors=False)


class OutputConstraint(Struct, frozen=True):
    """A JSON Schema or grammar that the output must match, and the path of the field that requires it."""

    kind: ConstraintKind
    source: str
    param: str


def answer_schema(shape: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the JSON Schema that `text.format` requires of the text; None if any text is allowed."""
    kind = (shape or {}).get("type")
    if shape is None or kind in (None, "text"):
        return None
    return shape["schema"] if kind == "json_schema" else {"type": "object"}


def tool_constraints(tools: RequestTools) -> list[OutputConstraint]:
    """Returns the constraints of the tools: schemas of strict functions and grammars of custom tools."""
    result: list[OutputConstraint] = []
    for served_tool, path in zip(tools.served, tools.paths, strict=True):
        leaves = served_tool.tools if isinstance(served_tool, NamespaceTool) else (served_tool,)
        for index, tool in enumerate(leaves):
            tool_path = f"{path}.tools[{index}]" if isinstance(served_tool, NamespaceTool) else path
            result += _tool_constraint(tool, tool_path)
    return result


def _tool_constraint(tool: FunctionTool | CustomTool, path: str) -> list[OutputConstraint]:
    if isinstance(tool, FunctionTool):
        schema = json.dumps(tool.parameters or {"type": "object"})
        return [OutputConstraint("schema", schema, f"{path}.parameters")] if tool.strict else []
    tool_format = tool.format
    if not isinstance(tool_format, GrammarFormat):
        return []
    return [
        OutputConstraint(
            "regex" if tool_format.syntax == "regex" else "lark", tool_format.definition, f"{path}.format.definition"
        )
    ]


def check_constraint(constraint: OutputConstraint) -> None:
    """Raises `ApiError` 400 for a constraint that cannot be met. May take long; safe to call from any thread."""
    fault = _compile_fault(constraint.kind, constraint.source)
    if fault:
        code = SCHEMA_ERROR_CODES.get(constraint.param) or ERROR_CODES[constraint.kind]
        raise ApiError(400, code, f"Invalid '{constraint.param}': {clip_text(fault, 400)}", constraint.param)


@lru_cache(maxsize=512)
def _compile_fault(kind: ConstraintKind, source: str) -> str:
    """Returns the reason why a constraint cannot be met; empty if it can."""
    try:
        if kind == "schema":
            grammar = LLMatcher.grammar_from_json_schema(source)
        else:
            build_grammar = LLMatcher.grammar_from_lark if kind == "lark" else LLMatcher.grammar_from_regex
            grammar = build_grammar(source)
        matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=GRAMMAR_LIMITS)
        token_mask = matcher.compute_bitmask()  # the only call that detects rules that never terminate
    except ValueError as error:
        return str(error)
    if matcher.is_error():
        return str(matcher.get_error())
    return "" if any(token_mask) else "no output can match it"


class _ByteTokenizer:
    """A vocabulary of single bytes. The validity of a grammar does not depend on the model's tokenizer."""

    tokens = [*(bytes([value]) for value in range(256)), b"<end>"]  # noqa: RUF012  # never mutated
    special_token_ids = [256]  # noqa: RUF012
    eos_token_id = 256
    bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@lru_cache(maxsize=1)
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_ByteTokenizer()))
