"""Checked constraints of a request: JSON Schemas and grammars that the output must match.

Each keeps the path of its field in the request. It is compiled in a separate process before generation starts,
so that a constraint that cannot be met, or that cannot be compiled, returns a 400 that names the field.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text
from antiphon.app.requests.tools import RequestTools
from antiphon.app.sandbox.grammar_checker import GRAMMAR_CHECKER
from antiphon.app.sandbox.messages import GrammarKind
from antiphon.app.sandbox.report import report_sandbox_error
from antiphon.app.sandbox.sandbox_process import SandboxError
from antiphon.events.tools import BuiltinTool, CustomTool, FunctionTool, GrammarFormat, NamespaceTool
from antiphon.harmony.format import PromptInput
from antiphon.harmony.strict_schema import close_objects
from antiphon.harmony.tools import HostedTool

SCHEMA_ERROR_CODES = {
    "text.format.schema": "invalid_json_schema",
    "response_format.json_schema.schema": "invalid_json_schema",
    "response_format.schema": "invalid_json_schema",
    "structured_outputs.json": "invalid_json_schema",
    "guided_json": "invalid_json_schema",
}
ERROR_CODES = {"schema": "invalid_function_parameters", "lark": "invalid_grammar", "regex": "invalid_grammar"}


class CheckedConstraint(Struct, frozen=True):
    """A JSON Schema or grammar that the output must match, and the path of the field that requires it."""

    kind: GrammarKind
    source: str
    param: str


def schema_constraint(schema: Mapping[str, Any], param: str) -> CheckedConstraint:
    """Returns the constraint of a JSON Schema, in the form that is enforced: with closed objects."""
    return CheckedConstraint("schema", json.dumps(close_objects(schema)), param)


def list_constraints(
    tools: RequestTools,
    prompt_input: PromptInput,
    text_constraints: Sequence[CheckedConstraint] = (),
    *,
    schema_param: str = "",
) -> tuple[CheckedConstraint, ...]:
    """Returns what the output must match: grammars of custom tools, schemas of strict functions, `text_constraints`.

    The schemas of other functions count if the turn needs a grammar, whose part they are. `schema_param` is the path of
    the schema that the text must match, if that is not part of `text_constraints`.
    """
    all_schemas, result = bool(tools.served) and prompt_input.needs_grammar, list[CheckedConstraint]()
    for served_tool, path in zip(tools.served, tools.paths, strict=True):
        if isinstance(served_tool, BuiltinTool | HostedTool):
            continue  # its schema or grammar is the server's own, or not enforced
        leaves = served_tool.tools if isinstance(served_tool, NamespaceTool) else (served_tool,)
        for index, tool in enumerate(leaves):
            tool_path = f"{path}.tools[{index}]" if isinstance(served_tool, NamespaceTool) else path
            result += _tool_constraint(tool, tool_path, tools.schema_key, all_schemas=all_schemas)
    constraint = prompt_input.output_constraint
    if schema_param and constraint is not None and constraint.schema is not None:
        result.append(schema_constraint(constraint.schema, schema_param))
    return (*result, *text_constraints)


def name_grammar_field(constraints: Sequence[CheckedConstraint]) -> str | None:
    """Returns the field that needs the grammar of a turn: of one constraint the whole path, of several their start."""
    paths = {constraint.param for constraint in constraints}
    roots = {re.split(r"[.\[]", path)[0] for path in paths}
    return next(iter(paths if len(paths) == 1 else roots)) if len(roots) == 1 else None


def _tool_constraint(
    tool: FunctionTool | CustomTool, path: str, schema_key: str, *, all_schemas: bool
) -> list[CheckedConstraint]:
    if isinstance(tool, FunctionTool):
        if not (tool.strict or all_schemas):
            return []
        return [schema_constraint(tool.parameters or {"type": "object"}, f"{path}.{schema_key}")]
    tool_format = tool.format
    if not isinstance(tool_format, GrammarFormat):
        return []
    return [
        CheckedConstraint(
            "regex" if tool_format.syntax == "regex" else "lark", tool_format.definition, f"{path}.format.definition"
        )
    ]


async def find_schema_fault(schema: Mapping[str, Any]) -> str | None:
    """Returns why no grammar can hold a JSON Schema; None if one can."""
    constraint = schema_constraint(schema, "")
    try:
        return await GRAMMAR_CHECKER.find_fault(constraint.kind, constraint.source)
    except SandboxError as error:
        return str(error)


async def check_constraint(constraint: CheckedConstraint) -> None:
    """Raises `ApiError`: 400 for a constraint that cannot be met, 500 if the server cannot check it."""
    try:
        fault = await GRAMMAR_CHECKER.find_fault(constraint.kind, constraint.source)
    except SandboxError as error:
        raise report_sandbox_error(error, constraint.param) from None
    if fault:
        code = SCHEMA_ERROR_CODES.get(constraint.param) or ERROR_CODES[constraint.kind]
        raise ApiError(400, code, f"Invalid '{constraint.param}': {clip_text(fault, 400)}", constraint.param)
