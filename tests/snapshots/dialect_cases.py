"""The sample outputs of a dialect, of which `snapshots/dialects` shows the segments, as cases for all APIs."""

from typing import Any

from antiphon.harmony.dialect import Dialect
from tests.harmony.parser_helpers import ADD_SCHEMA, WRITE_SCHEMA
from tests.harmony.samples import list_sample_outputs
from tests.snapshots.cases import Case

SAMPLE_TOOLS: dict[str, dict[str, Any]] = {"add": ADD_SCHEMA, "write": WRITE_SCHEMA, "now": {"type": "object"}}
"""Parameters of the functions that the samples call."""


def list_dialect_cases(dialect: Dialect) -> list[Case]:
    """Returns a case for each sample output, with the same functions in the words of each API."""
    return [
        Case(
            sample.name,
            [sample.text],
            dialect=dialect.name,
            responses={"tools": [_flat_tool(name) for name in SAMPLE_TOOLS] if sample.tools else None},
            chat={"tools": [_nested_tool(name) for name in SAMPLE_TOOLS] if sample.tools else None},
            messages={"tools": [_anthropic_tool(name) for name in SAMPLE_TOOLS] if sample.tools else None},
        )
        for sample in list_sample_outputs(dialect)
    ]


def _flat_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": SAMPLE_TOOLS[name]}


def _nested_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SAMPLE_TOOLS[name]}}


def _anthropic_tool(name: str) -> dict[str, Any]:
    return {"name": name, "input_schema": SAMPLE_TOOLS[name]}
