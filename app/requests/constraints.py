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
    """Something that the answer must fit, and the field that says so."""

    kind: ConstraintKind
    source: str
    param: str


def answer_schema(shape: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The schema that the text must fit, by `text.format`; None: any text."""
    kind = (shape or {}).get("type")
    if shape is None or kind in (None, "text"):
        return None
    return shape["schema"] if kind == "json_schema" else {"type": "object"}


def tool_constraints(tools: RequestTools) -> list[OutputConstraint]:
    """What the tools promise: strict arguments, and texts by a grammar."""
    found: list[OutputConstraint] = []
    for offer, path in zip(tools.served, tools.paths, strict=True):
        inner = offer.tools if isinstance(offer, NamespaceTool) else (offer,)
        for index, tool in enumerate(inner):
            place = f"{path}.tools[{index}]" if isinstance(offer, NamespaceTool) else path
            found += _tool_constraint(tool, place)
    return found


def _tool_constraint(tool: FunctionTool | CustomTool, path: str) -> list[OutputConstraint]:
    if isinstance(tool, FunctionTool):
        schema = json.dumps(tool.parameters or {"type": "object"})
        return [OutputConstraint("schema", schema, f"{path}.parameters")] if tool.strict else []
    shape = tool.format
    if not isinstance(shape, GrammarFormat):
        return []
    return [
        OutputConstraint("regex" if shape.syntax == "regex" else "lark", shape.definition, f"{path}.format.definition")
    ]


def check_constraint(promise: OutputConstraint) -> None:
    """Raise `ApiError` 400 for a promise that cannot be kept. May take long; any thread may ask."""
    fault = _compile_fault(promise.kind, promise.source)
    if fault:
        code = SCHEMA_ERROR_CODES.get(promise.param) or ERROR_CODES[promise.kind]
        raise ApiError(400, code, f"Invalid '{promise.param}': {clip_text(fault, 400)}", promise.param)


@lru_cache(maxsize=512)
def _compile_fault(kind: ConstraintKind, source: str) -> str:
    """What is wrong with it; nothing: it can be kept."""
    try:
        if kind == "schema":
            grammar = LLMatcher.grammar_from_json_schema(source)
        else:
            make = LLMatcher.grammar_from_lark if kind == "lark" else LLMatcher.grammar_from_regex
            grammar = make(source)
        matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=GRAMMAR_LIMITS)
        first = matcher.compute_bitmask()  # which alone tells of a rule that never comes to an end
    except ValueError as error:
        return str(error)
    if matcher.is_error():
        return str(matcher.get_error())
    return "" if any(first) else "it matches nothing"


class _ByteTokenizer:
    """A vocabulary of bytes: whether a grammar is one does not depend on how a model cuts text."""

    tokens = [*(bytes([value]) for value in range(256)), b"<end>"]  # noqa: RUF012  # never changed
    special_token_ids = [256]  # noqa: RUF012
    eos_token_id = 256
    bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@lru_cache(maxsize=1)
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_ByteTokenizer()))
